"""Tensors of a `pytorch_model.bin`, read without torch and without running what a pickle may hold."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hexgraft.models.errors import CheckpointError

BIN = "pytorch_model.bin"
_PICKLE_LIMIT = 16 << 20
_HINT = "convert it to model.safetensors, with `safetensors.torch.save_file` where torch is installed"
_STORAGES: dict[str, tuple[str, Any]] = {
    "FloatStorage": ("F32", np.float32),
    "HalfStorage": ("F16", np.float16),
    "BFloat16Storage": ("BF16", ml_dtypes.bfloat16),
    "LongStorage": ("I64", np.int64),
    "IntStorage": ("I32", np.int32),
    "BoolStorage": ("BOOL", np.bool_),
}


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    start: int
    shape: tuple[int, ...]


class TorchTensors:
    """The tensors of one file, as `HfTensors` gives those of a folder.

    Nothing but plain containers and descriptions of tensors can come out of its pickle. Raises
    CheckpointError for whatever else it asks for, and for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path / BIN
        try:
            with zipfile.ZipFile(self._file) as archive:
                self._entries = {entry.filename: entry for entry in archive.infolist()}
                pickles = [
                    name for name in self._entries if name.count("/") == 1 and name.endswith("/data.pkl")
                ]
                if len(pickles) != 1 or self._entries[pickles[0]].file_size > _PICKLE_LIMIT:
                    raise CheckpointError(f"{self._file} is not a PyTorch archive of tensors", _HINT)
                self._prefix = pickles[0].removesuffix("data.pkl")
                state = _Unpickler(io.BytesIO(archive.read(pickles[0])), self._file).load()
        except CheckpointError:
            raise
        except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, EOFError) as error:
            raise CheckpointError(
                f"{self._file} is not a PyTorch archive, or is damaged: {error}", _HINT
            ) from error
        except Exception as error:  # a broken pickle raises whatever its opcodes run into
            raise CheckpointError(f"{self._file} is damaged: {error}", _HINT) from error
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise CheckpointError(f"{self._file} holds no names of tensors", _HINT)
        self._tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, _Tensor)}
        self.files = dict.fromkeys(self._tensors, BIN)
        for name in self._tensors:
            self._check(name)

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Type and shape of a tensor."""
        tensor = self._tensors[name]
        return _STORAGES[tensor.storage.kind][0], tensor.shape

    def read(self, name: str, where: slice) -> NDArray[Any]:
        """Rows of a tensor."""
        tensor = self._tensors[name]
        kind = np.dtype(_STORAGES[tensor.storage.kind][1])
        rows = range(*where.indices(tensor.shape[0]))
        row = math.prod(tensor.shape[1:])
        first = self._begin(tensor) + (tensor.start + rows.start * row) * kind.itemsize
        with self._file.open("rb") as stream:
            stream.seek(first)
            data = stream.read(len(rows) * row * kind.itemsize)
        return np.frombuffer(data, kind).reshape(len(rows), *tensor.shape[1:])

    def _check(self, name: str) -> None:
        """That the tensor lies inside its storage, and the storage uncompressed inside the file."""
        tensor = self._tensors[name]
        entry = self._entries.get(f"{self._prefix}data/{tensor.storage.key}")
        size = np.dtype(_STORAGES[tensor.storage.kind][1]).itemsize
        end = (tensor.start + math.prod(tensor.shape)) * size
        if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size < end:
            raise CheckpointError(f"tensor {name[:80]} of {self._file} is damaged or missing", _HINT)
        if self._begin(tensor) + entry.file_size > self._file.stat().st_size:
            raise CheckpointError(f"tensor {name[:80]} of {self._file} is cut short", _HINT)

    def _begin(self, tensor: _Tensor) -> int:
        """Where a storage begins in the file: behind the header it has of its own."""
        entry = self._entries[f"{self._prefix}data/{tensor.storage.key}"]
        with self._file.open("rb") as stream:
            stream.seek(entry.header_offset)
            header = stream.read(30)
        names, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        return entry.header_offset + 30 + names + extra


class _Unpickler(pickle.Unpickler):
    """Knows tensors, their storages and ordered dicts; every other name in the pickle is refused."""

    def __init__(self, stream: io.BytesIO, where: Path) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return name
        raise CheckpointError(f"{self._where} holds {module}.{name}, which is not a tensor", _HINT)

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("storage", str(kind), str(key), str(), int(count)) if kind in _STORAGES:
                return _Storage(kind, key, count)
        raise CheckpointError(f"{self._where} refers to something that is not a tensor's storage", _HINT)

    def _tensor(self, storage: Any, start: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
        sizes = [start, *shape, *strides]
        if not isinstance(storage, _Storage) or not all(
            isinstance(size, int) and size >= 0 for size in sizes
        ):
            raise CheckpointError(f"{self._where} describes a tensor that cannot be", _HINT)
        dense = [1]
        for size in reversed(shape[1:]):
            dense.insert(0, dense[0] * size)
        if shape and tuple(strides) != tuple(dense):
            raise CheckpointError(
                f"{self._where} holds a tensor whose rows do not lie one after the other", _HINT
            )
        return _Tensor(storage, start, tuple(shape))
