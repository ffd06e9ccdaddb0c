"""A way to draft that can be tried: drafter, tree size, depth, and the drafter's own parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise, product

import msgspec

from hexgraft.host.bundle import Bundle
from hexgraft.host.drafters.base import Drafter
from hexgraft.host.drafters.knobs import KNOBS, MergeKnobs, TableKnobs, parse_knobs
from hexgraft.host.drafters.registry import DRAFTERS, PLAIN, make_drafter
from hexgraft.host.measure.profile import Width
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.models.errors import HexgraftError

FAN_OUT = ("max_fan_out", "top_k")
"""What drafters call the number of children a node may have; the first that one has is varied."""
FANS = (1, 2, 3, 4, 6, 8)
DEPTHS = (1, 2, 3, 4, 6, 8, None)
SHARES = {"depth": (1, 2, 3), "enough": (1, 2, 4)}
"""Of two drafters in one tree: how many levels the dear one adds, and what spares it."""
CHEAP = ("depth=1", "enough=1")
"""One pass of the dear one at most, and none where the cheap one promises a token: where passes of several
rows and of the draft cost much, larger trees pay with this alone, so that a climb has to begin there, too."""
LARGEST = 64
"""Nodes of a tree beyond which nothing is tried: draft passes and host time grow, acceptance hardly does."""

TRIED = tuple(name for name in DRAFTERS if name not in (PLAIN, "sampled"))
"""Plain decoding is what everything is compared with; draws are for other verifiers than `match`."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`tree_size` counts the root; `options` are the words of `--draft-option`."""

    drafter: str
    tree_size: Width
    tree_depth: Width | None = None
    options: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """How tables and messages call it."""
        parts = [self.drafter, f"{self.tree_size} nodes"]
        parts += [f"depth {self.tree_depth}"] if self.tree_depth is not None else []
        return ", ".join((*parts, *self.options))

    def arguments(self) -> list[str]:
        """The same as words of the command line."""
        words = ["--draft", self.drafter, "--tree-size", str(self.tree_size)]
        words += ["--tree-depth", str(self.tree_depth)] if self.tree_depth is not None else []
        return words + [word for option in self.options for word in ("--draft-option", option)]


OpenDraft = Callable[[], Session]
Maker = Callable[[Setting, OpenDraft], Drafter]
"""Makes a setting's drafter, which opens a draft session if it needs one."""


def maker(bundle: Bundle, sampling: Sampling) -> Maker:
    """The drafters of a bundle, for one way to sample; the verifier is `match`."""

    def make(setting: Setting, open_draft: OpenDraft) -> Drafter:
        knobs = parse_knobs(setting.drafter, setting.options)
        table = knobs.of(TableKnobs).acceptance
        return make_drafter(setting.drafter, bundle, open_draft, sampling=sampling, table=table, knobs=knobs)

    return make


def usable_drafters(make: Maker, open_draft: OpenDraft, names: Sequence[str] = TRIED) -> list[str]:
    """The drafters this bundle can have, found out by making each."""
    found = []
    for name in names:
        try:
            make(Setting(name, 2), open_draft).close()
        except HexgraftError:
            continue
        found.append(name)
    return found


def beginnings(drafter: str) -> list[tuple[str, ...]]:
    """The options that a climb begins with."""
    return [(), CHEAP] if MergeKnobs in KNOBS.get(drafter, ()) else [()]


def varied(drafter: str) -> dict[str, tuple[int, ...]]:
    """The drafter's parameters that are varied beside its tree's, and their values."""
    knob = fan_out(drafter)
    found: dict[str, tuple[int, ...]] = {} if knob is None else {knob: FANS}
    return found | (SHARES if MergeKnobs in KNOBS.get(drafter, ()) else {})


def fan_out(drafter: str) -> str | None:
    """The name of the drafter's parameter that limits children, None if it has none."""
    found = {field.name for kind in KNOBS.get(drafter, ()) for field in fields(kind)}
    return next((name for name in FAN_OUT if name in found), None)


def tree_sizes(widths: Sequence[int]) -> list[int]:
    """The sizes of trees worth trying: a tree that fills a graph costs what a smaller one in it does."""
    return [width for width in widths if 2 <= width <= LARGEST]


def halfway(sizes: Sequence[int]) -> list[int]:
    """Sizes and those halfway to the next one: where any width runs, a tree costs what its own rows cost."""
    middles = [(low + high) // 2 for low, high in pairwise(sizes)]
    return sorted({*sizes, *middles})


def neighbours(setting: Setting, sizes: Sequence[int]) -> list[Setting]:
    """The settings that differ in one coordinate: size, depth, or one of the drafter's parameters."""
    replace = msgspec.structs.replace
    found = [replace(setting, tree_size=size) for size in sizes]
    found += [
        replace(setting, tree_depth=depth) for depth in DEPTHS if depth is None or depth < setting.tree_size
    ]
    for knob, values in varied(setting.drafter).items():
        rest = tuple(option for option in setting.options if not option.startswith(knob + "="))
        found += [replace(setting, options=(*rest, f"{knob}={value}")) for value in values]
        found.append(replace(setting, options=rest))
    # One order, so that no setting is tried twice.
    found = [replace(each, options=tuple(sorted(each.options))) for each in found]
    return [each for each in dict.fromkeys(found) if each != setting]


def every_setting(drafters: Sequence[str], sizes: Sequence[int]) -> list[Setting]:
    """The whole grid, for those with time."""
    found = []
    for name in drafters:
        knobs = [["", *(f"{knob}={value}" for value in values)] for knob, values in varied(name).items()]
        options = [tuple(sorted(filter(None, chosen))) for chosen in product(*knobs)]
        found += [
            Setting(name, size, depth, chosen)
            for size in sizes
            for depth in DEPTHS
            if depth is None or depth < size - 1
            for chosen in options
        ]
    return found
