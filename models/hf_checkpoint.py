"""A Hugging Face model folder: config.json, one or many safetensors files, tokenizer.json."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hexgraft.models.blocks import require_finite, row_ranges
from hexgraft.models.checkpoint import TokenizerFiles
from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.errors import CheckpointError
from hexgraft.models.file_names import clip, readable_name
from hexgraft.models.gguf_blocks import Blocks
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.hf_int4 import Packing, Read, as_blocks, dequantised, packing_from_hf, zero_points
from hexgraft.models.hf_names import Source, file_shapes, hf_sources, ignorable
from hexgraft.models.hf_tensors import HfTensors
from hexgraft.models.hf_tokenizer import tokenizer_from_hf
from hexgraft.models.json_file import read_json
from hexgraft.models.partial_rope import ROTATED, spread_heads


class HfCheckpoint:
    """A model folder, checked at opening from its headers alone: every tensor's presence, shape and type.

    Implements `Checkpoint`. Raises CheckpointError for whatever is missing, damaged or unsupported.
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
        values = read_json(path / "config.json")
        self.config = config_from_hf(values, str(path / "config.json"))
        self._packing = packing_from_hf(values, str(path / "config.json"))
        self._shapes = tensor_shapes(self.config)
        self._tensors = HfTensors(path)
        self._sources = hf_sources(self.config, self._tensors.files)
        self._packed: set[str] = set()
        self._check_tensors()
        self.tokenizer = tokenizer_from_hf(path, values, self.config.vocab, self.notes)
        self.name = self.origin = readable_name(path.resolve().name)
        self.license = license_of(path / "README.md")
        if self.config.context_limit is not None:
            self.notes.append(self.config.context_limit)

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Row blocks of the tensor with the canonical name `name`, float32, of about BLOCK_BYTES each."""
        source, shape = self._sources[name], self._shapes[name]
        rotated = self.config.rotated is not None and name.rpartition(".")[2] in ROTATED
        packed = source.tensor in self._packed
        blocks = self._packed_blocks if packed else self._plain_blocks
        for block in blocks(source, shape, self.config.head_dim if rotated else 1):
            yield spread_heads(block, self.config) if rotated else block

    def block_bits(self, name: str) -> int | None:
        """Bits of a matrix that lies in whole blocks of 32 inputs in the folder, which `quantised` gives as
        they are; None for others. At 8 bits the zero is in the middle."""
        source, packing = self._sources[name], self._packing
        if packing is None or source.tensor not in self._packed:
            return None
        spread = self.config.rotated is not None and name.rpartition(".")[2] in ROTATED
        order = self._order(source.tensor)
        if (
            spread
            or not packing.in_blocks(self._shapes[name][1])
            or (order is not None and (order != packing.consecutive(len(order))).any())
        ):
            return None
        middle = packing.bits == 4 or (zero_points(packing, self._reader(source.tensor)) == 128).all()
        return packing.bits if middle else None

    def block_minima(self, name: str) -> bool:
        """Whether a matrix has blocks whose minima no zero from 0 to 15 says: GPTQ's zeros go to 16."""
        packing = self._packing
        if packing is None or packing.bits != 4:
            return False
        return bool((zero_points(packing, self._reader(self._sources[name].tensor)) > 15).any())

    def quantised(self, name: str) -> Iterator[Blocks]:
        """Row blocks of a matrix that has `block_bits`, as the folder quantised them."""
        source, packing = self._sources[name], self._packing
        assert packing is not None  # it has block_bits
        scales, read = _base(source) + "scales", self._reader(source.tensor)
        for start, stop in row_ranges(self._shapes[name], packing.each):
            blocks = as_blocks(packing, read, source.first + start, source.first + stop)
            require_finite(blocks.scales, scales, self.path / self._tensors.files[scales])
            yield blocks

    def _reader(self, tensor: str) -> Read:
        base, tensors = tensor.removesuffix("weight"), self._tensors
        return lambda suffix, *where: tensors.read(base + suffix, *where)

    def _order(self, tensor: str) -> NDArray[np.int32] | None:
        name = tensor.removesuffix("weight") + "g_idx"
        if name not in self._tensors.files:
            return None
        order: NDArray[np.int32] = self._tensors.read(name, slice(None))
        return order

    def _plain_blocks(
        self, source: Source, shape: tuple[int, ...], multiple: int
    ) -> Iterator[NDArray[np.float32]]:
        shard, first = self.path / self._tensors.files[source.tensor], source.first
        for start, stop in row_ranges(shape, multiple):
            rows = self._tensors.read(source.tensor, slice(first + start, first + stop))
            block = require_finite(to_float32(rows), source.tensor, shard)
            yield block + np.float32(source.plus) if source.plus else block

    def _packed_blocks(
        self, source: Source, shape: tuple[int, ...], multiple: int
    ) -> Iterator[NDArray[np.float32]]:
        packing = self._packing
        assert packing is not None  # whatever is in _packed was checked against it
        scales, read, order = (
            _base(source) + "scales",
            self._reader(source.tensor),
            self._order(source.tensor),
        )
        for start, stop in row_ranges(shape, math.lcm(packing.each, multiple)):
            block = dequantised(packing, read, source.first + start, source.first + stop, order)
            yield require_finite(block, scales, self.path / self._tensors.files[scales])

    def _check_tensors(self) -> None:
        files = self._tensors.files
        wanted = file_shapes(self.config, self._sources)
        known = set(wanted)
        for name in wanted:
            if self._packing is not None and name not in files:
                base = name.removesuffix("weight")
                if base + "qweight" in files:
                    self._packed.add(name)
                    known |= {base + part for part in ("qweight", "qzeros", "scales", "g_idx")}
        for name in files:
            if name not in known and not ignorable(name, self.config.tied) and not self._zero_bias(name):
                raise CheckpointError(
                    f"{self.path} has a tensor {clip(name)} that a {self.config.family} model lacks",
                    "the model is of another architecture than its config.json says, or of another size",
                )
        kinds: Counter[str] = Counter()
        for name, shape in wanted.items():
            packed = self._packing is not None and name in self._packed
            kind = self._require_packed(name, shape) if packed else self._tensors.require(name, shape)
            kinds[kind] += int(np.prod(shape))
        self.source_format = f"safetensors {kinds.most_common(1)[0][0]}"
        if self._packed and self._packing is not None:
            self.notes.append(f"its weights are {self._packing}: {self._use(self._packing)}")

    def _use(self, packing: Packing) -> str:
        """What becomes of packed weights, told by those of the first layer."""
        names = [name for name in self._shapes if name.startswith("layers.0.")]
        bits = {self.block_bits(name) for name in names if self._sources[name].tensor in self._packed}
        if bits in ({4}, {8}):
            kept = f"kept as they are by --cpu-precision w{packing.bits}"
            if packing.bits == 4:
                kept += " and, where their zeros are 8, by --precision w4a16"
            return f"{kept}, else dequantised to float32"
        return "dequantised to float32, since their groups are not whole blocks of 32 inputs in order"

    def _require_packed(self, name: str, shape: tuple[int, ...]) -> str:
        packing: Packing | None = self._packing
        assert packing is not None  # asked only about what is packed
        base = name.removesuffix("weight")
        for suffix, size in packing.shapes(shape).items():
            if suffix == "scales":
                self._tensors.require(base + suffix, size)
            else:
                self._tensors.require(base + suffix, size, {"I32": "int32"})
        if base + "g_idx" in self._tensors.files:
            self._tensors.require(base + "g_idx", (shape[1],), {"I32": "int32"})
        return str(packing)

    def _zero_bias(self, name: str) -> bool:
        """Whether this is one of the biases of zeros that GPTQ's tools write where a model has none."""
        if self._packing is None or not name.endswith("_proj.bias"):
            return False
        self._tensors.header(name)
        return not self._tensors.read(name, slice(None)).any()


def _base(source: Source) -> str:
    """What the names of a packed matrix's tensors begin with."""
    return source.tensor.removesuffix("weight")


def to_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    """bfloat16 is the upper half of float32: shifting is several times faster than converting."""
    if rows.dtype != ml_dtypes.bfloat16:
        return rows.astype(np.float32, copy=False)
    wide = rows.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def license_of(readme: Path) -> str | None:
    """The licence of a model card's front matter."""
    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    front = re.match(r"---\n(.*?)\n---", head, re.DOTALL)
    found = re.search(r"^license:\s*['\"]?([\w.+-]+)", front.group(1), re.MULTILINE) if front else None
    return found.group(1) if found else None
