"""A GGUF file, or the parts of a split one, dequantised in row blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from hexgraft.models.blocks import require_finite, row_ranges
from hexgraft.models.checkpoint import TokenizerFiles
from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.errors import CheckpointError, DamagedError
from hexgraft.models.file_names import readable_name
from hexgraft.models.gguf_blocks import BITS, WITH_MINIMA, Blocks, read_blocks
from hexgraft.models.gguf_config import config_from_gguf
from hexgraft.models.gguf_file import GgufTensor, open_gguf
from hexgraft.models.gguf_names import gguf_sources
from hexgraft.models.gguf_rope import FACTORS
from hexgraft.models.gguf_tokenizer import tokenizer_from_gguf
from hexgraft.models.hf_names import file_shapes
from hexgraft.models.partial_rope import ROTATED, spread_heads

_Number = TypeVar("_Number", np.float32, np.uint8)

_INTERLEAVED = ("llama", "granite", "smollm3")
"""Architectures whose q and k rows llama.cpp's converter interleaves."""


class GgufCheckpoint:
    """A GGUF file, checked at opening from its header alone: every tensor's presence, shape, type and place.

    Implements `Checkpoint`. llama.cpp's converter interleaves the rotated halves of q and k for some
    architectures; `blocks` gives them back as rotate-half rows. Raises CheckpointError.
    """

    path: Path
    config: ModelConfig
    tokenizer: TokenizerFiles
    name: str
    origin: str
    license: str | None
    source_format: str
    notes: list[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = []
        self._file = open_gguf(path)
        self.config = config_from_gguf(self._file)
        self._shapes = tensor_shapes(self.config)
        self._sources = gguf_sources(self.config, self._file.tensors)
        self._check_tensors()
        self.tokenizer = tokenizer_from_gguf(self._file, self.config.vocab)
        # The file's name is what people call a model; `general.name` often names a training run.
        self.name, self.origin = readable_name(path.stem), readable_name(path.name)
        license_ = self._file.fields.get("general.license")
        self.license = license_ if isinstance(license_, str) else None
        if self.config.context_limit is not None:
            self.notes.append(self.config.context_limit)

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Row blocks of the tensor with the canonical name `name`, float32, of about BLOCK_BYTES each."""
        source, shape = self._sources[name], self._shapes[name]
        tensor = self._file.tensors[source.tensor]
        part = name.rpartition(".")[2]
        permuted = self.config.family in _INTERLEAVED and part in ROTATED
        if len(tensor.shape) == 1:
            block = self._dequantized(tensor, 0, 1)[0]
            block = _rotate_half(block[:, None], self.config.head_dim)[:, 0] if permuted else block
            yield spread_heads(block, self.config) if part in ROTATED else block
            return
        for start, stop in row_ranges(shape, self.config.head_dim if part in ROTATED else 1):
            block = self._dequantized(tensor, source.first + start, source.first + stop)
            block = _rotate_half(block, self.config.head_dim) if permuted else block
            yield spread_heads(block, self.config) if part in ROTATED else block

    def block_kind(self, name: str) -> GGMLQuantizationType | None:
        """In which format of `gguf_blocks` a matrix lies in the file; None for others, and for heads whose
        rows are not those of the file."""
        kind = self._file.tensors[self._sources[name].tensor].kind
        spread = self.config.rotated is not None and name.rpartition(".")[2] in ROTATED
        return kind if kind in BITS and not spread else None

    def block_bits(self, name: str) -> int | None:
        """Bits of a matrix that `quantised` gives as it is, None for others."""
        kind = self.block_kind(name)
        return None if kind is None else BITS[kind]

    def block_minima(self, name: str) -> bool:
        """Whether a matrix has blocks whose minima are no whole number of scales."""
        return self.block_kind(name) is WITH_MINIMA

    def quantised(self, name: str) -> Iterator[Blocks]:
        """Row blocks of a matrix that has a `block_kind`, as the file quantised them."""
        source, shape = self._sources[name], self._shapes[name]
        tensor = self._file.tensors[source.tensor]
        part = name.rpartition(".")[2]
        permuted = self.config.family in _INTERLEAVED and part in ROTATED
        for start, stop in row_ranges(shape, self.config.head_dim if part in ROTATED else 1):
            raw = self._file.rows(tensor, source.first + start, source.first + stop)
            rows = read_blocks(raw, tensor.kind)
            for array in (rows.scales, rows.minima):
                require_finite(array, tensor.name, self.path)
            if permuted:
                values = _rotate_half(rows.values.reshape(len(rows.values), -1), self.config.head_dim)
                scales, minima = (
                    _rotate_half(array, self.config.head_dim) for array in (rows.scales, rows.minima)
                )
                rows = Blocks(values.reshape(rows.values.shape), scales, minima)
            yield rows

    def _dequantized(self, tensor: GgufTensor, start: int, stop: int) -> NDArray[np.float32]:
        raw = self._file.rows(tensor, start, stop)
        with np.errstate(all="ignore"):  # damaged scales overflow; require_finite names the tensor
            block = np.asarray(dequantize(raw, tensor.kind), dtype=np.float32)
        return require_finite(block, tensor.name, self.path)

    def _check_tensors(self) -> None:
        wanted = file_shapes(self.config, self._sources)
        tensors = self._file.tensors
        for name in tensors:
            if name not in wanted and name not in FACTORS:
                raise CheckpointError(
                    f"{self.path} has a tensor {name[:80]} that a {self.config.family} model lacks",
                    "the model is of another architecture than its metadata says, or of another size",
                )
        kinds: Counter[str] = Counter()
        for name, shape in wanted.items():
            if name not in tensors:
                raise CheckpointError(f"tensor {name} is missing from {self.path}", "download it again")
            tensor = tensors[name]
            if tensor.shape != shape:
                raise DamagedError(
                    f"tensor {name} of {self.path} has shape {list(tensor.shape)}, "
                    f"the metadata asks for {list(shape)}"
                )
            if tensor.kind not in supported_kinds():
                raise CheckpointError(
                    f"tensor {name} of {self.path} has type {tensor.kind.name}, which is not supported",
                    f"supported: {', '.join(sorted(kind.name for kind in supported_kinds()))}",
                )
            if name.startswith("blk."):
                kinds[tensor.kind.name] += int(np.prod(shape))
        self.source_format = f"GGUF {kinds.most_common(1)[0][0]}"


@cache
def supported_kinds() -> frozenset[GGMLQuantizationType]:
    """The storage types the installed gguf package dequantises, found by trying one block of each."""
    kinds = set()
    for kind in GGMLQuantizationType:
        _, bytes_each = GGML_QUANT_SIZES[kind]
        try:
            dequantize(np.zeros((1, bytes_each), np.uint8), kind)
        except NotImplementedError:
            continue
        kinds.add(kind)
    return frozenset(kinds)


def _rotate_half(rows: NDArray[_Number], head_dim: int) -> NDArray[_Number]:
    """Rows of whole heads from interleaved pairs (2i, 2i + 1) to halves (i, i + head_dim/2)."""
    heads = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)
