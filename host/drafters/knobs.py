"""What can be set about a drafter by name and value, checked before a model is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from hexgraft.host.drafters.best_first import BestFirstKnobs
from hexgraft.host.drafters.lookup import LookupKnobs
from hexgraft.host.drafters.shape import AcceptanceTable
from hexgraft.models.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LevelsKnobs:
    """`top_k` nodes are expanded a level, each into as many children; `depth` levels at most.

    `calibrated` corrects the draft's probabilities by what the target accepted; without it this is EAGLE-2.
    """

    top_k: int = 8
    depth: int = 8
    calibrated: bool = True

    def __post_init__(self) -> None:
        for name in ("top_k", "depth"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"levels: {name} {getattr(self, name)} is not positive",
                    f"example: --draft-option {name}=8",
                )


@dataclass(frozen=True, slots=True)
class TableKnobs:
    """`table`: how often the child of each rank is the accepted one, which decides the shape of a tree. Empty
    for what the draft's training has measured, or else a rough default."""

    table: tuple[float, ...] = ()

    @property
    def acceptance(self) -> AcceptanceTable | None:
        """The table, where there is one."""
        return AcceptanceTable(self.table) if self.table else None


@dataclass(frozen=True, slots=True)
class MergeKnobs:
    """The draft model is spared where the lookup alone promises `enough` accepted tokens."""

    enough: float = 6.0


KNOBS: dict[str, tuple[type, ...]] = {
    "none": (),
    "lookup": (LookupKnobs,),
    "chain": (),
    "best-first": (BestFirstKnobs,),
    "levels": (LevelsKnobs,),
    "static": (TableKnobs,),
    "sampled": (TableKnobs,),
    "lookup+levels": (LookupKnobs, LevelsKnobs, MergeKnobs),
}
"""By drafter. No two kinds of one drafter share a name."""


class Knobs:
    """Knobs of one drafter; those that were not set have their defaults."""

    def __init__(self, *values: Any) -> None:
        self._values = {type(value): value for value in values}

    def of(self, kind: type[T]) -> T:
        value: T = self._values.get(kind) or kind()
        return value


def parse_knobs(drafter: str, pairs: Iterable[str]) -> Knobs:
    """Knobs from texts like "top_k=8". Raises UsageError for an unknown name or a value of another kind."""
    types = {name: (kind, hint) for kind in KNOBS[drafter] for name, hint in get_type_hints(kind).items()}
    given: dict[type, dict[str, Any]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name not in types:
            raise UsageError(f"the drafter {drafter} has no option {name!r}", _known(name, drafter))
        if not equals:
            raise UsageError(f"--draft-option {pair!r} is not name=value", _example(name, drafter))
        kind, hint = types[name]
        given.setdefault(kind, {})[name] = _parse(name, text.strip(), hint, drafter)
    return Knobs(*(kind(**values) for kind, values in given.items()))


def defaults(drafter: str) -> dict[str, str]:
    """The options of a drafter and what they are when not given, as they are typed; a table, which is then
    the draft's own, is ""."""
    return {
        field.name: "" if field.default == () else str(field.default).lower()
        for kind in KNOBS[drafter]
        for field in dataclasses.fields(kind)
    }


def _example(name: str, drafter: str) -> str:
    return f"example: --draft-option {name}={defaults(drafter)[name] or '0.6,0.2,0.1'}"


def _known(name: str, drafter: str) -> str:
    """What there is instead of the option `name`."""
    names = defaults(drafter)
    owners = [other for other in KNOBS if name in defaults(other)]
    close = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(f"{known}={value}" if value else known for known, value in names.items())
    has = f"{drafter} has {listed}" if names else f"{drafter} has none"
    if owners:
        return f"it is one of --draft {' or '.join(owners)}; {has}"
    return f"did you mean --draft-option {close[0]}=...? {has}" if close else has


def _parse(name: str, text: str, hint: Any, drafter: str) -> Any:
    try:
        if hint is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if hint is int:
            return int(text)
        numbers = tuple(float(part) for part in text.split(",")) if hint is not float else (float(text),)
        if not all(map(math.isfinite, numbers)):
            raise ValueError
        return numbers[0] if hint is float else numbers
    except (KeyError, ValueError) as error:
        what = {bool: "true or false", int: "a whole number", float: "a number"}.get(hint, "numbers")
        raise UsageError(
            f"--draft-option {name}={text}: {text!r} is not {what}", _example(name, drafter)
        ) from error
