"""The interface every drafter has: begin a text, draft a tree, follow what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hexgraft.host.drafters.features import FeatureReader
from hexgraft.host.tree import Draws, TokenTree, single


class Pace(Protocol):
    """What a draft model's passes have to bring. Asked before each but the first, which reads the root."""

    def afford(self, gains: Sequence[float]) -> int:
        """How many nodes are worth a pass together, the likeliest ones first; 0 for no pass at all. `gains`
        are the accepted tokens each is foreseen to bring."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tree may not exceed: `nodes` with the root, `depth` below it; `stops` are never expanded. A
    drafter that asks a model stops where the next pass does not pay by `pace`."""

    nodes: int
    depth: int
    stops: frozenset[int]
    pace: Pace | None = None


class Drafter(Protocol):
    """Proposes token trees. `passes` and `rows` count draft model passes and the rows in them.

    `draws` tells verifiers how children are chosen, None for a drafter that proposes none.
    """

    name: str
    draws: Draws | None

    @property
    def reader(self) -> FeatureReader | None:
        """Who wants the features of the target's passes; None for drafters that read none."""
        ...

    @property
    def passes(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        """Start on a text; its last token is the first root. Its first `keep` tokens are those of the last
        text, so that what is known of them may be kept."""
        ...

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        """A tree rooted at the last of `tokens`, the text so far."""
        ...

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        """The nodes of `tree` the target accepted, from the root on; called after every `draft`."""
        ...

    def close(self) -> None: ...


class NoDraft:
    """Plain decoding: a tree of one node."""

    name = "none"
    draws: Draws | None = None
    reader: FeatureReader | None = None
    passes = 0
    rows = 0

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None: ...

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        return single(tokens[-1])

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None: ...

    def close(self) -> None: ...
