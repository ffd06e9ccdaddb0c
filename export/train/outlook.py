"""How far a head gets along known texts: exact for greedy chains, and acceptance by depth and rank for trees.

On the path of the text a head reads the same tokens and states as in the decode loop, so one unrolled pass
over a text shows what a chain drafted at every place would have been worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexgraft.export.train.dataset import Dataset
from hexgraft.export.train.draft_net import DraftNet

RANKS = 8
DEPTH = 6
"""Levels of the table: trees are drafted deeper than chains are worth on average."""
_CHAIN = 4


@dataclass(frozen=True, slots=True)
class Outlook:
    """`tokens_per_round` of greedy chains of four drafted tokens; `table` [depth][rank]: how often the token
    of the text was the head's best, second best, ... given that the path so far was the text's own."""

    tokens_per_round: float
    rounds: int
    table: list[list[float]]


def outlook(
    net: DraftNet, data: Dataset, embedding: Tensor, head: Tensor, tokens: NDArray[np.int64]
) -> Outlook:
    """Measure a head on the texts of `data`; `tokens` are the ids of its output rows."""
    emitted = rounds = 0
    hits, tried = np.zeros((DEPTH, RANKS)), np.zeros(DEPTH)
    ids = torch.from_numpy(tokens).to(head.device)
    with (
        torch.inference_mode(),
        torch.autocast(head.device.type, torch.bfloat16, head.dtype == torch.bfloat16),
    ):
        for number, text in enumerate(data.texts):
            batch = data.batch([number])
            states = net.unroll(batch, embedding, min(DEPTH, len(text.states) - 1))
            ranks = [_ranks(net.norm(s)[0], head, ids, batch.tokens[0, k:]) for k, s in enumerate(states, 2)]
            path = _path(ranks[:_CHAIN], text.prompt - 1, len(text.states))
            emitted += sum(path)
            rounds += len(path)
            for level, rank in enumerate(ranks):
                own = rank[max(0, text.prompt - 1) :]
                tried[level] += len(own)
                hits[level] += np.bincount(own[own < RANKS], minlength=RANKS)
    table = (hits / np.maximum(tried, 1)[:, None]).round(4).tolist()
    return Outlook(emitted / max(rounds, 1), rounds, table)


def _ranks(states: Tensor, head: Tensor, ids: Tensor, following: Tensor) -> NDArray[np.int64]:
    """The rank of the token that follows among the head's proposals at every row; RANKS where it is none."""
    count = min(RANKS, len(ids))
    best = ids[(states.to(head.dtype) @ head.t()).float().topk(count, -1).indices].cpu()
    rows = min(len(best), len(following))
    equal = best[:rows] == following[:rows, None].cpu()
    found: NDArray[np.int64] = torch.where(equal.any(-1), equal.int().argmax(-1), RANKS).numpy()
    return found


def _path(ranks: Sequence[NDArray[np.int64]], start: int, end: int) -> list[int]:
    """Tokens each round of greedy chains emits along a text whose answer begins behind row `start`."""
    path, row = [], start
    while row < end - 1:
        accepted = 0
        for rank in ranks:
            if row >= len(rank) or rank[row] != 0:
                break
            accepted += 1
        emitted = min(accepted + 1, end - 1 - row)
        path.append(emitted)
        row += emitted
    return path
