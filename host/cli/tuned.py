"""What `hexgraft tune` chose, taken up by the commands that decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from hexgraft.host.adb.session import DeviceSession
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import say
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.measure.choice import Choice, Site, read_tuned
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.machine import this_machine
from hexgraft.host.measure.setting import maker
from hexgraft.host.measure.tune import adapt, sizes_of
from hexgraft.host.prefix import Place
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.models.errors import HexgraftError

tuned_option = click.option(
    "--no-tuned", is_flag=True, help="Do not draft as `hexgraft tune` chose for this bundle and place."
)

_EXPLICIT = ("draft", "tree_size", "tree_depth", "corpus")
"""Options that say how to draft: whoever gives one wants that and nothing else."""


@dataclass(frozen=True, slots=True)
class Draft:
    """How to draft: the drafter, and what its trees may be: `size` nodes at most, `depth` levels below the
    root, None for no limit."""

    drafter: Drafter
    size: int
    depth: int | None = None


def site_of(place: Place, threads: int, session: Session) -> Site:
    """Where a choice for this session holds."""
    identity = session.serial if isinstance(session, DeviceSession) else this_machine().identity
    return Site(place, threads, identity)


def wants_tuned(options: dict[str, Any]) -> bool:
    """Whether the options leave open how to draft. Commands without `tuned_option` never do."""
    if options.get("no_tuned", True) or options["plain"] or options["verifier"] != "match":
        return False
    return not options["draft_option"] and all(options[name] is None for name in _EXPLICIT)


def tuned_drafter(
    bundle: Bundle, site: Site, target: Session, open_draft: Callable[[], Session], sampling: Sampling
) -> Draft | None:
    """The drafter chosen for a site, kept to what pays; None if nothing was chosen for this temperature, or
    what was cannot be read. Says so."""
    try:
        tuned = read_tuned(site)
    except HexgraftError as error:
        say(f"not tuned: {error.message} ({error.hint})")
        return None
    choice = tuned.at(sampling.temperature) if tuned is not None else None
    if tuned is None or choice is None:
        return None
    setting = choice.setting
    if setting is None:
        say("tuned: plain decoding, as no tree pays here (--no-tuned drafts all the same)")
        return Draft(NoDraft(), 1)
    costs = Costs.of(tuned.profile, choice.toll)
    sizes = sizes_of(costs, target.spec.tree_width)
    if not sizes:
        return None
    make = maker(bundle, sampling)
    drafter = adapt(make, setting, open_draft, costs, sizes, choice.speedup, choice.prior)
    say(f"tuned: {setting.title}, as far as it pays ({_words(choice)}; --no-tuned leaves it)")
    return Draft(drafter, sizes[-1], setting.tree_depth)


def _words(choice: Choice) -> str:
    return f"{choice.speedup:.2f}x plain decoding when it was chosen"
