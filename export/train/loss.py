"""Cross-entropy to the target's own distribution through its frozen output rows, in blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK = 1024
"""Rows whose logits are in memory at a time."""


class FrozenHeadLoss(torch.autograd.Function):
    """Sum over rows of weight * cross-entropy of softmax(states head^T) to shares of a few tokens.

    Loss and gradient of the states come out of one pass over the logits: the rows are frozen, so nothing
    else needs a gradient, and logits never stand in memory as a whole.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, ids: Tensor, shares: Tensor, weights: Tensor
    ) -> Tensor:
        """states [N, d], head [rows, d], ids and shares [N, kinds], weights [N]; a scalar."""
        gradient = torch.empty_like(states)
        total = states.new_zeros(())
        for start in range(0, len(states), _BLOCK):
            rows = slice(start, start + _BLOCK)
            logits = (states[rows].to(head.dtype) @ head.t()).float()
            log_sum = logits.logsumexp(-1)
            chosen = logits.gather(1, ids[rows])
            weight = weights[rows]
            total += ((log_sum - (chosen * shares[rows]).sum(-1)) * weight).sum()
            slope = torch.exp_(logits.sub_(log_sum[:, None]))
            slope.scatter_add_(1, ids[rows], -shares[rows])
            slope *= weight[:, None]
            gradient[rows] = (slope.to(head.dtype) @ head).to(states.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None, None, None


def soft_cross_entropy(states: Tensor, head: Tensor, ids: Tensor, shares: Tensor, weights: Tensor) -> Tensor:
    """See `FrozenHeadLoss`."""
    total: Tensor = FrozenHeadLoss.apply(states, head, ids, shares, weights)  # type: ignore[no-untyped-call]
    return total
