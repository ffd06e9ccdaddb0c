"""Ranks a draft's candidates as the target will draw: the same penalties, temperature and noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.logits import NotFinite
from hexgraft.host.randomness import gumbels
from hexgraft.host.sampling import History, Sampling, drawable
from hexgraft.host.session import Rows, TopK
from hexgraft.host.verify import Verifier

_CANDIDATES = 256
"""How many of a row's tokens are ranked; the noise rarely lifts one from further down."""
_FILTERED = 8.0
"""What a candidate loses when the draft's own top-k, top-p or min-p would drop it: the target's may not."""


class Follow:
    """Gumbel coupling. The target's draw at a position is argmax(log p + noise), the noise a function of
    (seed, position, token); a draft that ranks by log q + the same noise finds that token far more often than
    by q alone, and the output stays what it was, as the target's draw does not know the draft.

    Source of the idea: Gumbel-max draws with shared randomness, Daliri, Musco and Suresh, "Coupling without
    communication and drafter-invariant speculative decoding", arXiv 2408.07978.
    """

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    @staticmethod
    def changes(sampling: Sampling) -> bool:
        """Whether plain decoding under these options takes anything but the best logit."""
        return sampling.temperature > 0 or sampling.penalised

    def rank(
        self,
        rows: Rows,
        chosen: Sequence[int],
        k: int,
        positions: Sequence[int],
        histories: Sequence[History],
    ) -> TopK:
        """The k candidates likeliest to be drawn after each chosen row.

        `positions` are those of the tokens to be drawn. The scores stand in for logits: their softmax is how
        likely each candidate is to win if draft and target differ by as much again as the noise.
        """
        found = rows.topk(max(k, _CANDIDATES), chosen, log_sum=False)
        ranked = [
            self._row(*row, k) for row in zip(found.ids, found.logits, positions, histories, strict=True)
        ]
        ids, scores, sums = zip(*ranked, strict=True)
        return TopK(np.stack(ids), np.stack(scores), np.array(sums))

    def _row(
        self, tokens: NDArray[np.int32], logits: NDArray[np.float32], position: int, history: History, k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
        order = np.argsort(tokens, kind="stable")
        ids, scores = tokens[order], logits[order].astype(np.float64)
        if np.isnan(scores).any() or not np.isfinite(scores.max()):
            raise NotFinite
        if self.sampling.penalised:
            history.penalise(scores, self.sampling, ids)
        if self.sampling.temperature > 0:
            kept = drawable(scores, self.sampling)
            scores -= _FILTERED
            scores[kept] += _FILTERED
            scores += gumbels(self.sampling.seed, position, ids)
        best = np.argsort(-scores, kind="stable")[:k]
        top = scores[best[0]]
        total = float(top + np.log(np.exp(scores - top).sum()))
        with np.errstate(over="ignore"):  # of a temperature next to nothing
            return ids[best], scores[best].astype(np.float32), total


def followed(sampling: Sampling, verifier: Verifier) -> Sampling | None:
    """What a draft model should follow: under `match` it can foresee the target's noise."""
    return sampling if verifier.name == "match" and Follow.changes(sampling) else None
