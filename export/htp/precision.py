"""What each weight of an NPU graph is stored as: the chosen precision, and the few layers that stay
higher."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hexgraft.models.errors import UsageError

if TYPE_CHECKING:
    from hexgraft.models.graph import Weight

FLOAT = "fp16"
FORMATS = (FLOAT, "w8", "w4")
PRECISIONS = ("fp16", "w8a16", "w4a16")
W4_BLOCK = 32
"""Default block of 4-bit weights along the summed axis: one scale a channel is not usable at 4 bits."""

_BLOCKS = (512, 256, 128, 64, 32, 16)
"""Block sizes to propose."""

BITS = {FLOAT: 16, "w8": 8, "w4": 4}

Refusal = tuple[str, str]
"""What cannot be, and what to type instead."""

PROJECTIONS = ("qkv", "o", "gate_up", "down")
"""The matrices of a layer, as the graphs name them."""
MIXER = "fc"
"""The matrix by which a draft head takes states in."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Weights whose name matches `pattern` (a name, a prefix of one, or with `*`) are stored as `format`."""

    pattern: str
    format: str

    def matches(self, weight: str) -> bool:
        pattern = "head" if self.pattern == "lm_head" else self.pattern
        return fnmatch.fnmatchcase(weight, pattern) or fnmatch.fnmatchcase(weight, pattern + ".*")


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model is quantised.

    `block` is the block size of 4-bit weights along the summed axis, 0 for one scale a channel. Blocks of
    weights are multiplied with fp16 activations by the HTP, channels with 16-bit integers. `integer` also
    quantises everything between the projections, for chips without fp16.
    """

    name: str
    block: int = 0
    embed: str = FLOAT
    head: str = "w8"
    keep: tuple[Keep, ...] = ()
    integer: bool = False

    def of(self, weight: str) -> str:
        """The format of a weight by name ("layers.3.down", "embed", "head"); the last match of `keep`
        wins."""
        for keep in reversed(self.keep):
            if keep.matches(weight):
                return keep.format
        if self.name == "fp16":
            return FLOAT
        if weight in ("embed", "head"):
            return self.embed if weight == "embed" else self.head
        return self.name.removesuffix("a16")

    def keeping(self, weights: Sequence[str], format: str) -> Precision:
        """The same with more weights kept as `format`."""
        return replace(self, keep=self.keep + tuple(Keep(weight, format) for weight in weights))

    def with_keeps(self, keep: tuple[Keep, ...]) -> Precision:
        return replace(self, keep=keep)

    def for_head(self) -> Precision:
        """The same for a draft head. What it reads of the target has outliers, which take most steps of a
        16-bit range, so that the matrix which reads it stays float unless `keep` names it."""
        if self.name == "fp16":
            return self
        return replace(self, keep=(Keep(MIXER, FLOAT), *self.keep))

    def check_names(self, layers: int, head: bool) -> None:
        """Raise UsageError if `keep` names something that no graph has: neither one of so many `layers` nor,
        if there is a draft `head`, that one's."""
        weights = ["embed", "head", *[MIXER] * head]
        weights += [f"layers.{layer}.{name}" for layer in range(layers) for name in PROJECTIONS]
        for keep in self.keep:
            if not any(keep.matches(weight) for weight in weights):
                raise UsageError(
                    f"--keep {keep.pattern!r} names no weight of this model",
                    f"there are {', '.join(weights[: -len(PROJECTIONS) * layers])} and layers.0 to "
                    f"layers.{layers - 1}, each with {', '.join(PROJECTIONS)}",
                )

    def check_blocks(self, weights: Iterable[Weight]) -> None:
        """Raise UsageError, with what fits, if a block does not divide the inputs of a quantised matrix."""
        if not self.block:
            return
        inner = {
            weight.name: weight.shape[0 if weight.transposed else 1]
            for weight in weights
            if len(weight.shape) == 2 and weight.name != "embed" and self.of(weight.name) != FLOAT
        }
        odd = next((name for name, count in inner.items() if count % self.block), None)
        if odd is not None:
            fit = next((b for b in _BLOCKS if b < self.block and not any(n % b for n in inner.values())), 0)
            raise UsageError(
                f"blocks of {self.block} weights do not divide the {inner[odd]} inputs of {odd}",
                f"use --block {fit}" + ("" if fit else ", one scale a channel"),
            )

    @property
    def fp16_wishes(self) -> list[Refusal]:
        """What needs fp16 arithmetic, in the user's words, and what to ask for instead; none if all is
        integer."""
        if self.name == FLOAT:
            return [("--precision fp16", "use --precision w8a16")]
        wishes: list[Refusal] = []
        if self.embed != FLOAT:
            wishes.append((f"--embed {self.embed}", "leave out --embed"))  # whose rows are scaled in fp16
        if self.head == FLOAT:
            wishes.append(("--head fp16", "use --head w8"))
        if any(keep.format == FLOAT for keep in self.keep):
            wishes.append(("--keep with fp16", "keep at w8: --keep LAYER:w8"))
        if self.block:
            wishes.append((f"--block {self.block}", "use --block 0"))
        return wishes


def make_precision(
    name: str,
    *,
    block: int | None = None,
    embed: str | None = None,
    head: str | None = None,
    keep: str | None = None,
) -> Precision:
    """A precision from what a user typed; raises UsageError for what does not exist."""
    if name not in PRECISIONS:
        raise UsageError(f"unknown precision {name!r}", f"one of: {', '.join(PRECISIONS)}")
    if block is not None and (block < 0 or (block and (block < 16 or block & (block - 1)))):
        raise UsageError(f"--block {block} is not 0 or a power of two from 16", "example: --block 32")
    for option, format in (("--embed", embed), ("--head", head)):
        if format is not None and format not in FORMATS:
            raise UsageError(f"{option} {format!r} is no weight format", f"one of: {', '.join(FORMATS)}")
    if embed == "w4":
        raise UsageError("--embed w4 is not supported", "use --embed w8 or --embed fp16")
    if name == FLOAT:
        _refuse_formats(block, embed, head, keep)
    return Precision(
        name,
        block=(W4_BLOCK if block is None else block) if name == "w4a16" else (block or 0),
        embed=embed or FLOAT,
        head=head or (FLOAT if name == "fp16" else "w8"),
        keep=parse_keep(keep) if keep else (),
    )


def _refuse_formats(block: int | None, embed: str | None, head: str | None, keep: str | None) -> None:
    """Raise UsageError for what is asked of integers where there are none."""
    integers = {
        "--block": bool(block),
        "--embed": embed not in (None, FLOAT),
        "--head": head not in (None, FLOAT),
        "--keep": keep is not None and any(one.format != FLOAT for one in parse_keep(keep)),
    }
    asked = [option for option, is_asked in integers.items() if is_asked]
    if asked:
        words, verb = " and ".join(asked), "is" if len(asked) == 1 else "are"
        raise UsageError(
            f"{words} {verb} for quantised precisions, not {FLOAT}",
            f"add --precision w8a16 or w4a16, or leave out {words}",
        )


def parse_keep(text: str) -> tuple[Keep, ...]:
    """`layers.0,lm_head:fp16,layers.*.down:w8`: a format holds for the names before it; fp16 if none
    follows."""
    keeps: list[Keep] = []
    waiting: list[str] = []
    for item in text.split(","):
        name, colon, format = item.strip().partition(":")
        if not re.fullmatch(r"[\w.*]+", name):
            raise UsageError(
                f"--keep {text!r}: {name!r} is no weight name", 'example: --keep "layers.0:fp16"'
            )
        if colon and format not in FORMATS:
            raise UsageError(f"--keep {text!r}: unknown format {format!r}", f"one of: {', '.join(FORMATS)}")
        waiting.append(name)
        if colon:
            keeps += [Keep(waited, format) for waited in waiting]
            waiting = []
    return (*keeps, *(Keep(waited, FLOAT) for waited in waiting))
