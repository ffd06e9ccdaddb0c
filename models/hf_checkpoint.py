"""A Hugging Face model folder: config.json, one or many safetensors files, tokenizer.json."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives numpy, and with it safetensors, the type bfloat16)
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hexgraft.models.blocks import require_finite, row_ranges
from hexgraft.models.checkpoint import TokenizerFiles
from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.errors import CheckpointError
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.hf_names import file_shapes, hf_sources, ignorable
from hexgraft.models.hf_tokenizer import tokenizer_from_hf
from hexgraft.models.json_file import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class HfCheckpoint:
    """A model folder, checked at opening from its headers alone: every tensor's presence, shape and type.

    Implements `Checkpoint`. Raises CheckpointError for whatever is missing, damaged or unsupported.
    """

    path: Path
    config: ModelConfig
    tokenizer: TokenizerFiles
    name: str
    license: str | None
    source_format: str
    notes: list[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes = []
        values = read_json(path / "config.json")
        self.config = config_from_hf(values, str(path / "config.json"))
        self._shapes = tensor_shapes(self.config)
        files = _tensor_files(path)
        self._sources = hf_sources(self.config, files)
        self._files = self._check_tensors(files)
        self.tokenizer = tokenizer_from_hf(path, values, self.config.vocab)
        self.name = path.resolve().name
        self.license = _license(path / "README.md")
        if self.config.context_limit is not None:
            self.notes.append(self.config.context_limit)

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Row blocks of the tensor with the canonical name `name`, float32, of about BLOCK_BYTES each."""
        source = self._sources[name]
        shard, first = self.path / self._files[source.tensor], source.first
        for start, stop in row_ranges(self._shapes[name]):
            # Opened anew for each block: the library maps the file, and pages stay resident until it closes.
            try:
                with safe_open(shard, framework="numpy") as file:
                    rows = file.get_slice(source.tensor)[first + start : first + stop]
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"tensor {source.tensor} of {shard} cannot be read: {error}") from error
            block = require_finite(rows.astype(np.float32, copy=False), source.tensor, shard)
            yield block + np.float32(source.plus) if source.plus else block

    def _check_tensors(self, files: dict[str, str]) -> dict[str, str]:
        wanted = file_shapes(self.config, self._sources)
        for name in files:
            if name not in wanted and not ignorable(name, self.config.tied):
                raise CheckpointError(
                    f"{self.path} has a tensor {_clip(name)} that a {self.config.family} model lacks",
                    "the model is of another architecture than its config.json says, or of another size",
                )
        for name in wanted:
            if name not in files:
                raise CheckpointError(
                    f"tensor {name} is missing from {self.path}", "download the complete folder"
                )
        kinds: Counter[str] = Counter()
        for shard in sorted({files[name] for name in wanted}):
            headers = _headers(self.path / shard)
            for name in (name for name in wanted if files[name] == shard):
                kinds[self._check(name, headers.get(name), wanted[name], shard)] += int(np.prod(wanted[name]))
        self.source_format = f"safetensors {kinds.most_common(1)[0][0]}"
        return {name: files[name] for name in wanted}

    def _check(
        self, name: str, header: tuple[str, tuple[int, ...]] | None, shape: tuple[int, ...], shard: str
    ) -> str:
        if header is None:
            raise CheckpointError(f"tensor {name} is not in {self.path / shard}, where the index puts it")
        kind, found = header
        if found != shape:
            raise CheckpointError(
                f"tensor {name} of {self.path / shard} has shape {list(found)}, "
                f"config.json asks for {list(shape)}"
            )
        if kind not in DTYPES:
            raise CheckpointError(
                f"tensor {name} of {self.path / shard} is of type {kind}, which is not supported",
                f"supported: {', '.join(DTYPES.values())}",
            )
        return DTYPES[kind]


def _tensor_files(path: Path) -> dict[str, str]:
    """Tensor name to file name, from the index or the single file."""
    if (path / INDEX).exists():
        return _index(path)
    if (path / SINGLE).exists():
        return dict.fromkeys(_headers(path / SINGLE), SINGLE)
    hint = "download the complete folder"
    if any(path.glob("pytorch_model*.bin")):
        hint = "its weights are pickles (pytorch_model.bin); convert them to safetensors first"
    raise CheckpointError(f"{path} has no {SINGLE} and no {INDEX}", hint)


def _index(path: Path) -> dict[str, str]:
    weights = read_json(path / INDEX).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise CheckpointError(f"{path / INDEX} has no weight_map of tensor names to file names")
    for shard in sorted(set(weights.values())):
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", shard):
            raise CheckpointError(
                f"{path / INDEX} names {_clip(shard)!r}, which is not a plain file name in the folder"
            )
        if not (path / shard).is_file():
            raise CheckpointError(f"{path / shard} is missing", "download the complete folder")
    return weights


def _headers(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor of one safetensors file, without reading any data."""
    try:
        with safe_open(path, framework="numpy") as file:
            views: dict[str, Any] = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (str(view.get_dtype()), tuple(view.get_shape())) for name, view in views.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or damaged: {error}", "download it again") from error


def _license(readme: Path) -> str | None:
    """The licence of a model card's front matter."""
    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    front = re.match(r"---\n(.*?)\n---", head, re.DOTALL)
    found = re.search(r"^license:\s*['\"]?([\w.+-]+)", front.group(1), re.MULTILINE) if front else None
    return found.group(1) if found else None


def _clip(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
