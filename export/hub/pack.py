"""Packs a static graph as AI Hub takes it: a zip with one folder NAME.onnx of model.onnx and model.data."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from hexgraft.export.htp.network import external

_BLOCK = 8 << 20
_ALIGN = 64
_STAMP = (1980, 1, 1, 0, 0, 0)
_LEVEL = 1
"""The client's own choice: higher levels take many times as long for a few per cent."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes of one initializer: where they lie, and where they go in model.data."""

    file: Path
    offset: int
    length: int
    place: int


class Packed:
    """A static graph on disk, made ready: `digest` is the sha256 of its content, `proto` what AI Hub will
    read. Values that are not plain words (those that pass between parts) are renamed, as converters would."""

    def __init__(self, file: Path, name: str) -> None:
        self.name = name
        self.proto = onnx.load(file, load_external_data=False)
        self.proto.graph.name = name
        _rename_border(self.proto)
        self._pieces = list(_move_weights(self.proto, file.parent))
        self._model = self.proto.SerializeToString(deterministic=True)
        total = hashlib.sha256(self._model)
        for block in self._data():
            total.update(block)
        self.digest = total.hexdigest()

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        return list(self.proto.graph.input)

    @property
    def outputs(self) -> list[onnx.ValueInfoProto]:
        return list(self.proto.graph.output)

    @property
    def size(self) -> int:
        """Bytes before compression."""
        return len(self._model) + sum(piece.length for piece in self._pieces)

    def write(self, folder: Path) -> Path:
        """The zip, NAME.onnx.zip in `folder`; the same bytes for the same graph."""
        path = folder / f"{self.name}.onnx.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
            with archive.open(self._member("model.onnx"), "w", force_zip64=True) as stream:
                stream.write(self._model)
            if self._pieces:
                with archive.open(self._member("model.data"), "w", force_zip64=True) as stream:
                    for block in self._data():
                        stream.write(block)
        return path

    def _member(self, file: str) -> zipfile.ZipInfo:
        info = zipfile.ZipInfo(f"{self.name}.onnx/{file}", _STAMP)
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o644 << 16
        return info

    def _data(self) -> Iterator[bytes]:
        """model.data, block by block; never more than a block in memory."""
        written = 0
        for piece in self._pieces:
            yield bytes(piece.place - written)
            with piece.file.open("rb") as stream:
                stream.seek(piece.offset)
                left = piece.length
                while left:
                    block = stream.read(min(left, _BLOCK))
                    if not block:
                        raise EOFError(f"{piece.file} is shorter than its graph says")
                    left -= len(block)
                    yield block
            written = piece.place + piece.length


def _move_weights(proto: onnx.ModelProto, folder: Path) -> Iterator[_Piece]:
    """Point every external initializer into model.data; what they share (a tied table) is stored once."""
    places: dict[tuple[str, int, int], int] = {}
    end = 0
    for tensor in proto.graph.initializer:
        known = external(tensor)
        if known is None:
            continue
        file, offset, length = known
        if known not in places:
            end = -(-end // _ALIGN) * _ALIGN
            places[known] = end
            yield _Piece(folder / file, offset, length, end)
            end += length
        del tensor.external_data[:]
        for key, value in (("location", "model.data"), ("offset", places[known]), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))


def plain_name(name: str) -> str:
    """A name of letters, digits and underscores, which every tool on the way keeps."""
    return re.sub(r"\W", "_", name)


def _rename_border(proto: onnx.ModelProto) -> None:
    graph = proto.graph
    new = {
        value.name: plain_name(value.name)
        for value in (*graph.input, *graph.output)
        if plain_name(value.name) != value.name
    }
    if not new:
        return
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = new.get(name, name)
