"""Drafters by the name users choose them with."""

from __future__ import annotations

from collections.abc import Callable

from hexgraft.host.bundle import Bundle
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.best_first import BestFirst
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.lookup import Lookup, LookupKnobs
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.session import Session
from hexgraft.models.errors import UsageError

DRAFTERS = ("lookup", "chain", "best-first", "levels", "none")


def default_drafter(bundle: Bundle) -> str:
    """What `run` uses when nothing is asked for: the draft model's levels where there is one, otherwise
    lookup."""
    return "levels" if bundle.draft is not None else "lookup"


def make_drafter(name: str, bundle: Bundle, open_draft: Callable[[], Session]) -> Drafter:
    """A drafter; `open_draft` is called only if it needs the bundle's draft model.

    `chain` is the top-1 chain of the draft model, or of lookup where the bundle has none.
    """
    if name == "none":
        return NoDraft()
    if name == "lookup":
        return Lookup()
    if name == "chain" and bundle.draft is None:
        return Lookup(knobs=LookupKnobs(occurrences=1))
    if name not in DRAFTERS:
        raise UsageError(f"unknown drafter {name!r}", f"one of: {', '.join(DRAFTERS)}")
    bundle.model("draft")
    model = DraftModel(open_draft())
    if name == "chain":
        return Chain(model)
    return Levels(model) if name == "levels" else BestFirst(model)
