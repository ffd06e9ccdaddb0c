"""The session: the whole interface to a place that runs graphs. The decode loop cannot tell one from
another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.errors import DecodeError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """Sizes and facts of the model a session runs. `widths` is None where any width up to `max_width` runs.

    `capacity` is the number of cache slots C, `provider` what the user chose ("cpu", "runner", ...).
    `features` is how many numbers a row's `hidden` has, 0 where the graph does not give it. `logits` is how
    many a row of logits has: `vocab`, or fewer where a draft head proposes fewer tokens. `last_logits` are
    those of `widths` whose graph gives its last row's logits alone: prompts go through them, trees do not.
    """

    role: str
    vocab: int
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    capacity: int
    widths: tuple[int, ...] | None
    max_width: int
    provider: str
    features: int
    logits: int
    last_logits: tuple[int, ...] = ()

    @property
    def tree_widths(self) -> tuple[int, ...] | None:
        """The widths for trees, ascending; None where any up to `max_width` runs. One row has every logit
        in each graph."""
        if self.widths is None:
            return None
        return tuple(width for width in self.widths if width not in self.last_logits) or (1,)

    @property
    def tree_width(self) -> int:
        """The rows of the widest pass that gives every row's logits: no tree has more nodes."""
        return self.max_width if self.tree_widths is None else self.tree_widths[-1]


@dataclass(frozen=True, slots=True)
class Visibility:
    """What each of the T rows of a pass sees, in compact form: never a function of positions or slots.

    Every row sees the cache slots 0..prefix-1. `slots` [S] int32 are further (scratch) slots, `seen` [T, S]
    tells which row sees which. `rows` [T, T] tells which rows of the same pass a row sees; every row sees
    itself.
    """

    prefix: int
    rows: Bools
    slots: Ints
    seen: Bools

    @property
    def count(self) -> int:
        return int(self.rows.shape[0])


def causal(prefix: int, count: int) -> Visibility:
    """Rows of a sequence: each sees the prefix and the rows up to itself."""
    return tree_visibility(prefix, np.tri(count, dtype=np.bool_))


def tree_visibility(prefix: int, ancestors: Bools) -> Visibility:
    """Rows of a tree: each sees the prefix, its ancestors and itself (`ancestors` [T, T], itself
    included)."""
    return Visibility(
        prefix, ancestors, np.empty(0, np.int32), np.empty((ancestors.shape[0], 0), dtype=np.bool_)
    )


@dataclass(frozen=True, slots=True)
class TopK:
    """The k best tokens of some rows, in the total order (-logit, id): ids [R, k], logits [R, k].

    `log_sum` [R] is the log of the summed exponentials of the whole row, so that exp(logits - log_sum) are
    probabilities at temperature 1; NaN where it was not asked for.
    """

    ids: Ints
    logits: Floats
    log_sum: NDArray[np.float64]


class Rows(Protocol):
    """The results of one pass, fetched lazily, valid until the session's next `forward`."""

    count: int
    width: int
    """The width the pass ran at, padding included."""
    seconds: float
    """Time inside the graph runtime alone."""

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK: ...

    def logits(self, row: int) -> Floats:
        """One row's logits [vocab]; a copy the caller may change."""
        ...

    def hidden(self, row: int) -> Floats:
        """One row's hidden features [spec.features], where the graph gives them."""
        ...

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        """The hidden features of some rows [R, spec.features], or of all: a copy, in one transfer."""
        ...


@dataclass(frozen=True, slots=True)
class CacheRows:
    """A copy of cache slots 0..n-1: keys [layers, kv_heads, head_dim, n], values [layers, kv_heads, n,
    head_dim]."""

    keys: Floats
    values: Floats

    @property
    def count(self) -> int:
        return int(self.values.shape[2])


@dataclass(frozen=True, slots=True)
class States:
    """What stood before each of the T rows of a draft head's pass: `features` [T, F] of the target, `hidden`
    [T, d] of the head itself, zero where a row has the other. Where F is 0 the target's are in `hidden`."""

    features: Floats
    hidden: Floats


class Session(Protocol):
    """A model with a cache, somewhere. A pass stages its new K/V rows; nothing reaches the cache until
    `store`."""

    spec: SessionSpec

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        """One pass over T rows, padded to the narrowest width that fits. Slots >= capacity may not be
        visible."""
        ...

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Write staged K/V rows of the last pass into cache slots."""
        ...

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy cache slots; both ascending, every target <= its source."""
        ...

    def reset(self) -> None:
        """Forget the cache's content: slots that were written are zero again."""
        ...

    def save(self, count: int) -> CacheRows:
        """A copy of slots 0..count-1."""
        ...

    def restore(self, rows: CacheRows) -> None:
        """Write slots 0..n-1 from a saved copy."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class HeadSession(Session, Protocol):
    """A session that also runs draft heads."""

    def feed(self, states: States) -> None:
        """What the rows of the next pass go on from; a head's pass needs it, every time."""
        ...


def prefill(
    session: Session,
    tokens: Sequence[int],
    start: int,
    end: int,
    watch: Callable[[int, Rows], None] | None = None,
) -> Iterator[int]:
    """Read tokens[start:end] into the slots of their places, in passes of the widest graph.

    Slots 0..start-1 hold what stands before. Yields how many slots hold the text after each pass. `watch` is
    given every pass's first place and rows.
    """
    width = session.spec.max_width
    while start < end:
        chunk = tokens[start : min(end, start + width)]
        places = range(start, start + len(chunk))
        rows = session.forward(chunk, places, causal(start, len(chunk)))
        session.store(range(len(chunk)), places)
        if watch is not None:
            watch(start, rows)
        start += len(chunk)
        yield start


def check_pass(
    spec: SessionSpec, tokens: Sequence[int], positions: Sequence[int], visible: Visibility
) -> None:
    """Raise DecodeError unless a pass has known tokens, each with a position and a row of visibility."""
    if len(tokens) == 0 or len(positions) != len(tokens) or visible.count != len(tokens):
        raise DecodeError(
            f"{len(tokens)} tokens, {len(positions)} positions, {visible.count} visibility rows"
        )
    if min(tokens) < 0 or max(tokens) >= spec.vocab:
        raise DecodeError(f"token {max(tokens)} is outside the vocabulary of {spec.vocab}")
    if min(positions) < 0 or max(positions) >= spec.capacity:
        raise DecodeError(f"position {max(positions)} is beyond the context of {spec.capacity}")


def checked_store(
    rows: Sequence[int], slots: Sequence[int], *, staged: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The arguments of `store` as arrays, checked as every session does; only `staged` rows can be stored."""
    if len(rows) != len(slots):
        raise DecodeError(f"store of {len(rows)} rows into {len(slots)} slots")
    if len(rows) and (min(rows) < 0 or max(rows) >= staged):
        wrong = min(rows) if min(rows) < 0 else max(rows)
        raise DecodeError(f"store of row {wrong}, the last pass had {staged} rows")
    if len(slots) and min(slots) < 0:
        raise DecodeError("store into a negative slot")
    return np.array(rows, np.intp), np.array(slots, np.intp)


def checked_move(
    source: Sequence[int], target: Sequence[int], *, capacity: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The arguments of `move` as arrays, after the checks every session makes."""
    src, dst = np.asarray(source, np.intp), np.asarray(target, np.intp)
    if src.shape != dst.shape:
        raise DecodeError(f"move of {src.size} slots onto {dst.size} slots")
    if src.size:
        if (np.diff(src) <= 0).any() or (np.diff(dst) <= 0).any() or (dst > src).any() or dst[0] < 0:
            raise DecodeError("move wants ascending slots, every target at or below its source")
        if src[-1] >= capacity:
            raise DecodeError(f"move of slot {src[-1]}, the cache has {capacity}")
    return src, dst
