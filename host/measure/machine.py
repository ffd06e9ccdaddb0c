"""What a reader of figures has to know about the machine they were taken on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from hexgraft.host.adb.facts import PhoneFacts
from hexgraft.host.measure.profile import Conditions, Machine


def this_machine(threads: int = 0) -> Machine:
    """Facts of this machine; `threads` as the session was given them."""
    return Machine(
        name=_processor() or platform.machine(),
        identity=platform.node(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=os.cpu_count() or 0,
        threads=threads or None,
        memory=_memory(),
        load=round(os.getloadavg()[0], 2),
    )


def phone_machine(facts: PhoneFacts, chip: str | None, runtime: str) -> Machine:
    """Facts of a phone; `chip` in words, where the table of chips has it."""
    return Machine(
        name=f"{facts.manufacturer} {facts.model}".strip() or facts.serial,
        identity=facts.serial,
        chip=chip or facts.soc or facts.board,
        system=f"Android {facts.android}" if facts.android else facts.target,
        cores=len(facts.clocks) or None,
        memory=facts.memory,
        runtime=runtime,
    )


def conditions(facts: PhoneFacts) -> Conditions:
    """How a phone is right now."""
    return Conditions(
        temperatures={zone.name: zone.degrees for zone in facts.zones},
        frequencies={f"cpu{number}": clock.now for number, clock in enumerate(facts.clocks)},
        battery=facts.battery,
        plugged=facts.plugged,
        awake=facts.awake,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def _memory() -> int | None:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    return pages * size if pages > 0 and size > 0 else None
