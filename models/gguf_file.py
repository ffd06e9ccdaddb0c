"""The header of a GGUF file, read with every count and size checked against the file before it is trusted."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from hexgraft.models.errors import CheckpointError, DamagedError, UnsupportedError, look_at

VERSIONS = (2, 3)
MAX_FIELDS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ITEMS = 1 << 22
MAX_HEADER = 256 << 20
_MAX_PARTS = 1000
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies: `shape` outermost first, `offset` in the file `path` and `row_bytes` in bytes."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    row_bytes: int
    path: Path


class GgufFile:
    """Metadata and tensor table of a GGUF file (version 2 or 3, little-endian).

    The format is specified in docs/gguf.md of the ggml project. Reading takes memory in proportion to the
    header, which is bounded, never to counts that a damaged header claims. Raises CheckpointError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                reader = _HeaderReader(file, path)
                tensor_count, field_count = _counts(reader)
                self.fields: dict[str, Any] = dict(_field(reader) for _ in range(field_count))
                if len(self.fields) != field_count:
                    raise DamagedError(f"{path} gives a metadata key twice")
                table = [_tensor_entry(reader) for _ in range(tensor_count)]
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}", look_at(path)) from error
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise DamagedError(f"{path}: general.alignment is {alignment}, not a power of two")
        start = -(-reader.position // alignment) * alignment
        self.tensors = {entry[0]: _tensor(path, entry, start, reader.size) for entry in table}
        if len(self.tensors) != tensor_count:
            raise DamagedError(f"{path} lists a tensor name twice")

    def rows(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.uint8]:
        """The raw bytes of rows [start, stop), uint8 [rows, row_bytes]."""
        count = (stop - start) * tensor.row_bytes
        try:
            offset = tensor.offset + start * tensor.row_bytes
            data = np.fromfile(tensor.path, dtype=np.uint8, count=count, offset=offset)
        except OSError as error:
            raise CheckpointError(
                f"tensor {tensor.name} of {tensor.path} cannot be read: {error}", look_at(tensor.path)
            ) from error
        if data.size != count:
            raise CheckpointError(f"{tensor.path} ends within tensor {tensor.name}", "download it again")
        return data.reshape(stop - start, tensor.row_bytes)


def open_gguf(path: Path) -> GgufFile:
    """A GGUF file; of a split one, the first part with the tensors of all parts. Raises CheckpointError."""
    file = GgufFile(path)
    count, number = (file.fields.get(f"split.{key}", 0) for key in ("count", "no"))
    if count in (0, 1):
        return file
    parts = parts_of(path)
    if not isinstance(count, int) or count < 2 or len(parts) != count:
        raise CheckpointError(
            f"{path} is one of {count} parts of a split GGUF, but not named as such a part is",
            f"name the parts NAME-00001-of-{count:05}.gguf and so on, as they were downloaded",
        )
    if number != 0:
        first = parts[0].name
        raise CheckpointError(f"{path} is not the first part of a split GGUF", f"give the first one: {first}")
    for index, name in enumerate(parts[1:], 2):
        part = GgufFile(name)
        if part.fields.get("split.count") != count or part.fields.get("split.no") != index - 1:
            raise DamagedError(f"{part.path} is not part {index} of the {count} that {path.name} begins")
        twice = file.tensors.keys() & part.tensors.keys()
        if twice:
            raise DamagedError(f"tensor {min(twice)[:80]} is in {part.path} and in a part before it")
        file.tensors |= part.tensors
    return file


def parts_of(path: Path) -> list[Path]:
    """The files a GGUF file's name says it consists of: itself, or all parts of a split one."""
    named = _PART.fullmatch(path.name)
    if named is None or not 1 <= int(named[3]) <= _MAX_PARTS:
        return [path]
    numbers = range(1, int(named[3]) + 1)
    return [path.with_name(f"{named[1]}-{number:05}-of-{named[3]}{named[4]}") for number in numbers]


class _HeaderReader:
    """Sequential reads that never go beyond the file or MAX_HEADER."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path
        self.size = path.stat().st_size
        self.position = 0
        self.items = 0

    def take(self, count: int) -> bytes:
        self.require(count)
        data = self.file.read(count)
        if len(data) != count:
            raise DamagedError(f"{self.path} was cut while it was read")
        self.position += count
        return data

    def require(self, count: int) -> None:
        """Refuse a header that claims `count` more bytes than there are."""
        if count > self.size - self.position:
            raise CheckpointError(
                f"{self.path} is truncated or damaged: at byte {self.position} its header claims "
                f"{count} more bytes, the file has {self.size - self.position}",
                "download it again",
            )
        if self.position + count > MAX_HEADER:
            raise DamagedError(
                f"{self.path} has a header of more than {MAX_HEADER >> 20} MB, which no model needs"
            )

    def scalar(self, kind: int) -> Any:
        code = _SCALARS.get(kind)
        if code is None:
            raise DamagedError(
                f"{self.path} is damaged: unknown value type {kind} before byte {self.position}"
            )
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        start = self.position
        try:
            return self.take(self.scalar(10)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedError(f"{self.path} is damaged: the string at byte {start} is not UTF-8") from error

    def array(self) -> list[Any]:
        kind, count = self.scalar(4), self.scalar(10)
        self.items += count
        if self.items > MAX_ITEMS:
            raise DamagedError(
                f"{self.path} claims {self.items} array items, more than the {MAX_ITEMS} allowed"
            )
        if kind == _STRING:
            self.require(8 * count)
            return [self.text() for _ in range(count)]
        code = _SCALARS.get(kind)
        if code is None:
            raise UnsupportedError(f"{self.path} has an array of value type {kind}, which is not supported")
        return list(struct.unpack(f"<{count}{code}", self.take(struct.calcsize(f"<{count}{code}"))))


def _counts(reader: _HeaderReader) -> tuple[int, int]:
    path = reader.path
    if reader.size < 24 or reader.take(4) != b"GGUF":
        raise CheckpointError(
            f"{path} is not a GGUF file", "give a .gguf file or a Hugging Face model folder"
        )
    version = reader.scalar(4)
    if version & 0xFFFF == 0:
        raise UnsupportedError(f"{path} is a big-endian GGUF file, which is not supported")
    if version not in VERSIONS:
        raise CheckpointError(f"{path} is GGUF version {version}", "supported: versions 2 and 3")
    tensors, fields = reader.scalar(10), reader.scalar(10)
    if tensors > MAX_TENSORS or fields > MAX_FIELDS:
        raise DamagedError(
            f"{path} is damaged: it claims {tensors} tensors and {fields} metadata keys, "
            f"more than the {MAX_TENSORS} allowed"
        )
    return tensors, fields


def _field(reader: _HeaderReader) -> tuple[str, Any]:
    key, kind = reader.text(), reader.scalar(4)
    if kind == _STRING:
        return key, reader.text()
    return key, reader.array() if kind == _ARRAY else reader.scalar(kind)


def _tensor_entry(reader: _HeaderReader) -> tuple[str, tuple[int, ...], int, int]:
    name, rank = reader.text(), reader.scalar(4)
    if not 1 <= rank <= 4:
        raise DamagedError(f"{reader.path} is damaged: tensor {name[:80]} has {rank} dimensions")
    sizes = tuple(reader.scalar(10) for _ in range(rank))
    return name, sizes[::-1], reader.scalar(4), reader.scalar(10)


def _tensor(path: Path, entry: tuple[str, tuple[int, ...], int, int], start: int, end: int) -> GgufTensor:
    name, shape, number, relative = entry
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise CheckpointError(
            f"tensor {name[:80]} of {path} is of the unknown type {number}",
            "`pip install -U gguf` may bring it; or take a file in another quantisation, such as Q8_0",
        ) from None
    elements, bytes_each = GGML_QUANT_SIZES[kind]
    if shape[-1] % elements:
        raise DamagedError(
            f"tensor {name[:80]} of {path} is damaged: rows of {shape[-1]} are not whole {kind.name} blocks"
        )
    row_bytes = shape[-1] // elements * bytes_each
    rows = 1
    for size in shape[:-1]:
        rows *= size
    if start + relative + rows * row_bytes > end:
        raise CheckpointError(
            f"{path} is truncated: tensor {name[:80]} ends at byte {start + relative + rows * row_bytes}, "
            f"the file at {end}",
            "download it again",
        )
    return GgufTensor(name, shape, kind, start + relative, row_bytes, path)
