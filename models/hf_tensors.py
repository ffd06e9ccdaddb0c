"""The tensors of a Hugging Face folder: which safetensors file has which, checked from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (gives numpy, and with it safetensors, the type bfloat16)
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hexgraft.models.errors import CheckpointError, DamagedError
from hexgraft.models.file_names import clip, is_file_name
from hexgraft.models.json_file import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class HfTensors:
    """`files` maps tensor names to file names. Raises CheckpointError for what is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _tensor_files(path)
        self._headers: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Type and shape of a tensor, as its file says."""
        if name not in self.files:
            raise CheckpointError(
                f"tensor {name} is missing from {self.path}", "download the complete folder"
            )
        file = self.files[name]
        if file not in self._headers:
            self._headers[file] = read_headers(self.path / file)
        header = self._headers[file].get(name)
        if header is None:
            raise DamagedError(f"tensor {name} is not in {self.path / file}, where the index puts it")
        return header

    def require(self, name: str, shape: tuple[int, ...], kinds: dict[str, str] = DTYPES) -> str:
        """The type of a tensor that must have this shape and one of these types."""
        kind, found = self.header(name)
        shard = self.path / self.files[name]
        if found != shape:
            raise DamagedError(
                f"tensor {name} of {shard} has shape {list(found)}, config.json asks for {list(shape)}"
            )
        if kind not in kinds:
            raise CheckpointError(
                f"tensor {name} of {shard} is of type {kind}, which is not supported",
                f"supported: {', '.join(kinds.values())}",
            )
        return kinds[kind]

    def read(self, name: str, *where: slice) -> NDArray[Any]:
        """A part of a tensor. Opened anew each time: the library maps the file, and pages stay resident."""
        shard = self.path / self.files[name]
        try:
            with safe_open(shard, framework="numpy") as file:
                part: NDArray[Any] = file.get_slice(name)[where if len(where) > 1 else where[0]]
        except (SafetensorError, OSError) as error:
            raise DamagedError(f"tensor {name} of {shard} cannot be read: {error}") from error
        return part


def read_headers(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every tensor of one safetensors file, without reading any data."""
    try:
        with safe_open(path, framework="numpy") as file:
            views: dict[str, Any] = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (str(view.get_dtype()), tuple(view.get_shape())) for name, view in views.items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or damaged: {error}", "download it again") from error


def _tensor_files(path: Path) -> dict[str, str]:
    """Tensor name to file name, from the single file or the index. Where both are there the file counts, as
    with transformers: whoever joined shards, or trained on, left the index of what was there before."""
    if (path / SINGLE).exists():
        return dict.fromkeys(read_headers(path / SINGLE), SINGLE)
    if (path / INDEX).exists():
        return _index(path)
    hint = "download the complete folder"
    if any(path.glob("pytorch_model*.bin")):
        hint = "its weights are pickles (pytorch_model.bin); convert them to safetensors first"
    raise CheckpointError(f"{path} has no {SINGLE} and no {INDEX}", hint)


def _index(path: Path) -> dict[str, str]:
    weights = read_json(path / INDEX).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise DamagedError(f"{path / INDEX} has no weight_map of tensor names to file names")
    for shard in sorted(set(weights.values())):
        if not is_file_name(shard):
            raise DamagedError(
                f"{path / INDEX} names {clip(shard)!r}, which is not a plain file name in the folder"
            )
        if not (path / shard).is_file():
            raise CheckpointError(f"{path / shard} is missing", "download the complete folder")
    return weights
