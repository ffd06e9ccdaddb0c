"""Drafters by the name users choose them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hexgraft.host.bundle import Bundle
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.best_first import BestFirst, BestFirstKnobs
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.follow import followed
from hexgraft.host.drafters.head import HeadModel
from hexgraft.host.drafters.knobs import Knobs, LevelsKnobs, MergeKnobs
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.lookup import Lookup, LookupKnobs
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.sampled import Sampled
from hexgraft.host.drafters.shape import AcceptanceTable
from hexgraft.host.drafters.static import Static
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.host.tree import Draws
from hexgraft.host.verify import Match, Residual, Verifier
from hexgraft.models.errors import UsageError

PLAIN = "none"
DRAFTERS = ("lookup", "chain", "best-first", "levels", "static", "sampled", "lookup+levels", PLAIN)

WITHOUT_MODEL = ("lookup", "chain")
"""Those that a bundle without a draft model can have, beside none."""


def default_drafter(bundle: Bundle) -> str:
    """What `run` uses when nothing is asked for: the draft model's levels where there is one, otherwise
    lookup."""
    return "levels" if bundle.draft is not None else "lookup"


def make_drafter(
    name: str,
    bundle: Bundle,
    open_draft: Callable[[], Session],
    *,
    sampling: Sampling | None = None,
    verifier: Verifier | None = None,
    table: AcceptanceTable | None = None,
    corpus: Sequence[Sequence[int]] = (),
    knobs: Knobs | None = None,
) -> Drafter:
    """A drafter; `open_draft` is called only if it needs the bundle's draft model.

    `chain` is the top-1 chain of the draft model, or of lookup where the bundle has none. `sampling` and
    `verifier` are those of the run: under `match` a draft model ranks by the noise the target will draw with,
    and `sampled` draws the way a residual verifier needs. `table` shapes `static` and `sampled`, the
    bundle's own if None; `corpus`
    holds token sequences for `lookup`, `knobs` set the drafter's own parameters.
    """
    if name not in DRAFTERS:
        raise UsageError(f"unknown drafter {name!r}", f"one of: {', '.join(DRAFTERS)}")
    knobs = knobs or Knobs()
    if name == PLAIN:
        return NoDraft()
    if name == "lookup":
        return Lookup(corpus, knobs.of(LookupKnobs))
    if name == "chain" and bundle.draft is None:
        return Lookup(corpus, LookupKnobs(occurrences=1))
    bundle.model("draft")
    if table is None and bundle.model("draft").acceptance:
        table = AcceptanceTable(bundle.model("draft").acceptance)
    sampling = sampling or Sampling()
    verifier = verifier or Match(sampling.seed)
    if name == "sampled":
        draws = verifier.draws if isinstance(verifier, Residual) else Draws.DISTINCT
        return Sampled(_draft_model(bundle, open_draft()), draws, sampling, table)
    model = _draft_model(bundle, open_draft(), followed(sampling, verifier))
    if name == "lookup+levels":
        lookup = Lookup(corpus, knobs.of(LookupKnobs))
        return Merge(lookup, _levels(model, knobs), enough=knobs.of(MergeKnobs).enough)
    if name == "static":
        return Static(model, table)
    if name == "chain":
        return Chain(model)
    return _levels(model, knobs) if name == "levels" else BestFirst(model, knobs.of(BestFirstKnobs))


def _draft_model(bundle: Bundle, session: Session, follow: Sampling | None = None) -> DraftModel:
    if bundle.model("draft").head is not None:
        return HeadModel(session, bundle, follow)
    return DraftModel(session, follow)


def _levels(model: DraftModel, knobs: Knobs) -> Levels:
    chosen = knobs.of(LevelsKnobs)
    return Levels(model, top_k=chosen.top_k, depth=chosen.depth, calibrated=chosen.calibrated)
