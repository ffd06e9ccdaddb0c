"""The walk along a verified tree: from the root over accepted children until the target disagrees, the tree
ends, or the text does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hexgraft.host.logits import NotFinite, log_sum_exp, top_tokens
from hexgraft.host.sampling import History, Sampling, row_distribution
from hexgraft.host.session import Rows
from hexgraft.host.tree import ROOT, TokenTree
from hexgraft.host.verify import Verifier
from hexgraft.models.errors import CONNECTION_LOST, HexgraftError


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of an emitted token at temperature 1, and the best tokens in its place, best first.

    `log_sum` is the log of the row's summed exponentials: added to a log probability it gives the logit.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    log_sum: float


@dataclass(slots=True)
class Walk:
    """What a walk found: accepted nodes from the root on, emitted tokens, and each judged node with the child
    accepted there. `finish` says why the text ended, if it did; `lost` holds the error of a link that went
    before the end of the path was known, whose tokens so far are emitted all the same."""

    accepted: list[int] = field(default_factory=lambda: [ROOT])
    tokens: list[int] = field(default_factory=list)
    judged: list[tuple[int, int | None]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    degraded: bool = False
    lost: HexgraftError | None = None


@dataclass(frozen=True, slots=True)
class Walker:
    """How a run walks. `emit` is told every emitted token in order and answers why the text ends there."""

    verifier: Verifier
    sampling: Sampling
    margins: bool
    logprobs: int | None
    emit: Callable[[int], str | None]

    def walk(self, tree: TokenTree, rows: Rows, history: History, position: int) -> Walk:
        """Walk `tree`, whose root stands at `position`; `rows` are the target's, one a node.

        Raises NotFinite if the logits of the root are not finite, and whatever says that the link is gone if
        they cannot be had; further down the walk ends before such a node.
        """
        walk = Walk()
        while True:
            node = walk.accepted[-1]
            try:
                target = row_distribution(rows, node, self.sampling, history)
                verdict = self.verifier.judge(tree, node, target, position + int(tree.depths[node]) + 1)
                self._record(walk, rows, node, verdict.token)
            except HexgraftError as error:
                not_finite = isinstance(error, NotFinite)
                if node == ROOT or not (not_finite or error.exit_code == CONNECTION_LOST):
                    raise
                # The node's own token was emitted by its parent; only what follows it is unknown.
                walk.accepted.pop()
                walk.degraded, walk.lost = not_finite, None if not_finite else error
                return walk
            walk.judged.append((node, verdict.child))
            walk.tokens.append(verdict.token)
            history.append(verdict.token)
            walk.finish = self.emit(verdict.token)
            if walk.finish is not None or verdict.child is None:
                return walk
            walk.accepted.append(verdict.child)

    def _record(self, walk: Walk, rows: Rows, node: int, token: int) -> None:
        """Margins and log probabilities come from raw logits, before penalties and temperature. All is
        fetched before any is noted, since the link may break in between."""
        best = rows.topk(2, [node], log_sum=False).logits[0] if self.margins else None
        logits = rows.logits(node) if self.logprobs is not None else None
        if best is not None:
            walk.margins.append(float(best[0] - best[1]))
        if logits is not None:
            total = log_sum_exp(logits)
            best_ids = top_tokens(logits, self.logprobs) if self.logprobs else ()
            top = tuple((int(i), float(logits[i]) - total) for i in best_ids)
            walk.logprobs.append(TokenLogprob(token, float(logits[token]) - total, top, total))
