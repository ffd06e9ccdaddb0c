"""The processes of one training: alone, or as many as torchrun started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from hexgraft.models.errors import HexgraftError, UsageError

_TORCHRUN = "start it with torchrun, or alone: unset RANK WORLD_SIZE"


class Workers:
    """Splits batches and sums results over the processes torchrun started, which it tells by the
    environment."""

    def __init__(self) -> None:
        self.count, self.rank = _told("WORLD_SIZE", 1), _told("RANK", 0)
        if not 0 <= self.rank < self.count:
            raise UsageError(f"RANK is {self.rank} and WORLD_SIZE {self.count}", _TORCHRUN)
        if self.count > 1 and not distributed.is_initialized():
            try:
                with _together("the processes of this training do not find one another"):
                    distributed.init_process_group("gloo")
            except ValueError as error:  # torch misses a variable that torchrun sets
                raise UsageError(
                    f"WORLD_SIZE is {self.count}, but torchrun did not start this", _TORCHRUN
                ) from error

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def share(self, numbers: Sequence[int]) -> list[int]:
        """This process's part of a batch."""
        return list(numbers[self.rank :: self.count])

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.count > 1:
            with _together():
                distributed.all_reduce(value)
        return value

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes, in one message."""
        if self.count == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        with _together():
            distributed.all_reduce(flat)
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def any(self, mine: bool) -> bool:
        """Whether any process says so."""
        return bool(self.sum(torch.tensor(float(mine))) > 0)

    def least(self, mine: int) -> int:
        """The smallest of all processes' numbers."""
        value = torch.tensor(mine)
        if self.count > 1:
            with _together():
                distributed.all_reduce(value, distributed.ReduceOp.MIN)
        return int(value)

    def wait(self) -> None:
        """Until every process is here."""
        if self.count > 1:
            with _together():
                distributed.barrier()

    def close(self) -> None:
        """Leave the group."""
        if self.count > 1 and distributed.is_initialized():
            distributed.destroy_process_group()


def _told(name: str, alone: int) -> int:
    """A number that torchrun tells by the environment; UsageError where it is none."""
    text = os.environ.get(name, str(alone))
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r} in the environment, not a number", _TORCHRUN)
    return int(text)


@contextmanager
def _together(otherwise: str = "another process of this training has ended") -> Iterator[None]:
    """Say in words what torch raises where another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise HexgraftError(
            otherwise,
            "start all of them again: they go on where they were",
        ) from error
