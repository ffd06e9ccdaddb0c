"""What the trainer asks of a network, whatever the kind of draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from hexgraft.export.train.dataset import Batch
from hexgraft.export.train.norm import Norm


class DraftNet(Protocol):
    """A torch module that can be unrolled over texts; its states go through `norm` and the target's rows."""

    norm: Norm

    def unroll(self, batch: Batch, embedding: Tensor, steps: int) -> list[Tensor]:
        """States [B, L - s, d] of step s = 1, 2, ...: that at row i has read the tokens up to i + s."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...
