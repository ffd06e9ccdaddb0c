"""What every reader of a folder's tensors gives, whatever files they lie in."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray


class TensorFiles(Protocol):
    """Named tensors; `files` maps them to file names, in which errors find them."""

    files: dict[str, str]

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Type, as safetensors calls it ("F16", "I64"), and shape of a tensor."""
        ...

    def read(self, name: str, where: slice) -> NDArray[Any]:
        """Rows of a tensor."""
        ...
