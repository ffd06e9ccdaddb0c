"""The parity gate: NPU graphs against the fp32 CPU graph on held-out text, through the decode loop's
passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hexgraft.host.session import Rows, Session
from hexgraft.host.traces.replay import (
    Figures,
    ForcedPass,
    Pair,
    decode_passes,
    measure,
    prefill_passes,
    replay,
    tree_pass,
)
from hexgraft.host.tree import TokenTree, TreeBuilder

TIE = 0.05
"""Two logits nearer than this are equal as far as fp16 can tell over a whole network."""


@dataclass(slots=True)
class Parity(Figures):
    """Figures, and `margin`: how far apart the reference's logits are, at most, of two best tokens that
    differ. Small ones are ties, which any other rounding turns: `ties` counts those."""

    margin: float = 0.0
    ties: int = 0

    def take(self, pair: Pair) -> None:
        row = measure(pair)
        self.add(row)
        if row.finite and row.best[0] != row.best[1]:
            ours, theirs = row.best
            margin = float(pair.reference[ours] - pair.reference[theirs])
            self.margin = max(self.margin, margin)
            self.ties += margin < TIE

    def as_dict(self) -> dict[str, Any]:
        return Figures.as_dict(self) | {"largest_margin": self.margin, "ties": self.ties}


@dataclass(slots=True)
class StateParity:
    """How near the states that draft heads read come to the reference's, over all rows."""

    not_finite: int = 0
    _signal: float = 0.0
    _noise: float = 0.0

    def take(self, forced: ForcedPass, ours: Rows, theirs: Rows) -> None:
        """The rows of one pass, as `replay` tells them."""
        reference, other = (rows.hiddens().astype(np.float64) for rows in (ours, theirs))
        finite = np.isfinite(other).all(axis=1)
        self.not_finite += int((~finite).sum())
        self._signal += float(np.square(reference[finite]).sum())
        self._noise += float(np.square(reference[finite] - other[finite]).sum())

    @property
    def sqnr_db(self) -> float:
        """Signal to noise in dB; infinite without a difference."""
        return 10 * math.log10(self._signal / self._noise) if self._signal and self._noise else math.inf


@dataclass(frozen=True, slots=True)
class Threshold:
    """What the figures over all passes must reach: share of best tokens that are equal or tied, mean KL in
    nats, and perplexity relative to fp32."""

    agreement: float
    kl: float
    perplexity: float


THRESHOLDS = {
    "fp16": Threshold(0.98, 1e-3, 1.01),
    "w8a16": Threshold(0.93, 0.03, 1.05),
    "w4a16": Threshold(0.70, 0.5, 1.25),
}
"""Wide enough that a healthy build passes on few rows; what the gate is for misses them by far."""

_LARGEST_TREE = 48


def gate_passes(tokens: Sequence[int], widths: Sequence[int], prefill: int, vocab: int) -> list[ForcedPass]:
    """Passes that make every width run: prefill in the widest, then decoding, then one tree a width.

    `tokens` is the held-out text, no longer than the context; the trees follow it on one path and leave it
    on the others.
    """
    widest = max(widths)
    sizes = [min(width, _LARGEST_TREE) for width in sorted(widths) if width > 1]
    prefill = min(prefill, max(1, len(tokens) - sum(size // 2 + 1 for size in sizes) - 4))
    passes = list(prefill_passes(tokens, prefill, widest))
    place = prefill
    passes += decode_passes(tokens[: place + 3], place)
    place += 2
    for number, size in enumerate(sizes):
        if place + 1 >= len(tokens):
            break  # a context too short for more
        tree, path = bushy_tree(tokens[place:], size, vocab)
        emitted = tokens[place + 1 : place + 1 + len(path)]
        passes.append(tree_pass(tree, place, path, emitted, number + 3))
        place += len(path)
    return passes


def bushy_tree(tokens: Sequence[int], size: int, vocab: int) -> tuple[TokenTree, list[int]]:
    """A tree of `size` nodes along `tokens` with a sibling beside every node, and the nodes of that path."""
    builder = TreeBuilder(tokens[0])
    path = [0]
    for token in tokens[1:]:
        if len(builder) + 2 > size:
            break
        parent = path[-1]
        path.append(builder.add(parent, token, 0.5, "text"))
        builder.add(parent, (token + 7 * len(path)) % vocab, 0.25, "beside")
    return builder.build(), path


def compare(
    passes: Sequence[ForcedPass],
    reference: Session,
    other: Session,
    report: Callable[[int], None] = lambda rows: None,
    *,
    before: Callable[[ForcedPass], None] | None = None,
    watch: Callable[[ForcedPass, Rows, Rows], None] | None = None,
) -> tuple[Parity, dict[int, Parity]]:
    """Figures over all rows, and by the width `other` ran them at. `before` and `watch` are `replay`'s."""
    total = Parity()
    by_width: dict[int, Parity] = {}

    def told(forced: ForcedPass) -> None:
        report(len(forced.tokens))

    for pair in replay(passes, reference, other, told, before=before, watch=watch):
        total.take(pair)
        by_width.setdefault(_width(other, len(pair.forced.tokens)), Parity()).take(pair)
    return total, by_width


def _width(session: Session, count: int) -> int:
    widths = session.spec.widths
    return count if widths is None else next(width for width in widths if width >= count)


def failures(figures: Parity, threshold: Threshold) -> Iterator[str]:
    """What of `figures` misses `threshold`, in words."""
    if figures.not_finite:
        yield f"{figures.not_finite} of {figures.rows} rows are not finite"
    agreement = (figures.agreed + figures.ties) / max(figures.rows, 1)
    if agreement < threshold.agreement:
        yield f"top-1 agreement but for ties, {agreement:.1%}, is below {threshold.agreement:.1%}"
    if figures.kl > threshold.kl:
        yield f"KL {figures.kl:.3g} is above {threshold.kl:.3g}"
    reference, other = figures.perplexity  # not known of heads, whose vocabulary may lack what follows
    if other > reference * threshold.perplexity:
        room = threshold.perplexity - 1
        yield f"perplexity {other:.4g} is more than {room:.0%} above fp32's {reference:.4g}"


def parity_figures(figures: Figures) -> dict[str, float]:
    """What a bundle records of a graph."""
    return {name: value for name, value in figures.as_dict().items() if value is not None}
