"""One bench from warm-up to profile: the models of a bundle in one place, and how a phone fared meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date

import onnxruntime
from msgspec.structs import replace

from hexgraft.host.adb.facts import PhoneFacts
from hexgraft.host.bundle import Bundle
from hexgraft.host.measure.latency import Plan, measure_model, measure_plain, measure_row
from hexgraft.host.measure.machine import conditions, phone_machine, this_machine
from hexgraft.host.measure.profile import FORMAT, LatencyProfile, Source
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import Session

_POLL = 2.0


@dataclass(frozen=True, slots=True)
class PhoneWatch:
    """How to ask a phone for its facts, what its chip is called, and how cool it must be to begin.

    `cool_to` is in degrees Celsius, None to begin at once; after `patience` seconds it begins anyway. `note`
    is told while it waits.
    """

    facts: Callable[[], PhoneFacts]
    chip: Callable[[PhoneFacts], str | None]
    cool_to: float | None = 45.0
    patience: float = 120.0
    note: Callable[[str], None] = field(default=lambda text: None)
    sleep: Callable[[float], None] = time.sleep


def cool_down(watch: PhoneWatch) -> float:
    """Wait for the warmest zone of a phone to cool; the seconds waited."""
    begun = time.monotonic()
    while True:
        waited = time.monotonic() - begun
        hottest = watch.facts().hottest
        if watch.cool_to is None or hottest is None or hottest.degrees <= watch.cool_to:
            return waited
        where = f"{hottest.name} is at {hottest.degrees:.0f} °C"
        if waited >= watch.patience:
            watch.note(f"warning: {where} after {waited:.0f} s of waiting; measuring all the same")
            return waited
        watch.note(f"{where}, waiting for {watch.cool_to:.0f} °C")
        watch.sleep(min(_POLL, max(0.0, watch.patience - waited)))


def bench(
    bundle: Bundle,
    open_role: Callable[[str], Session],
    prompt: Sequence[int],
    plan: Callable[[Session], Plan],
    *,
    by: str,
    threads: int = 0,
    watch: PhoneWatch | None = None,
) -> LatencyProfile:
    """Measure target and draft of a bundle. `open_role` opens a session of either; `plan` says what to
    measure of one; `prompt` is what plain decoding begins with."""
    cooling = cool_down(watch) if watch else None
    target = open_role("target")
    try:
        before = watch.facts() if watch else None
        times = measure_model(target, bundle.target, plan(target))
        draft_times = None
        if bundle.draft is not None:
            draft = open_role("draft")
            try:
                draft_times = measure_model(draft, bundle.draft, plan(draft))
            finally:
                draft.close()
        row = measure_row(target, bundle.target, plan(target))
        host_round, endurance = measure_plain(target, prompt, plan(target))
        after = watch.facts() if watch else None
        backend, runtime = target.spec.provider, runtime_of(target)
    finally:
        target.close()
    return LatencyProfile(
        format=FORMAT,
        source=Source("measured on a phone" if watch else "measured here", date.today().isoformat(), by),
        machine=(
            phone_machine(before, watch.chip(before), runtime)
            if watch is not None and before is not None
            else replace(this_machine(threads), runtime=runtime)
        ),
        backend=backend,
        target=times,
        draft=draft_times,
        bundle=bundle.digest,
        host_round=host_round,
        row=row,
        endurance=endurance,
        before=conditions(before) if before else None,
        after=conditions(after) if after else None,
        cooling=cooling,
    )


def runtime_of(session: Session) -> str:
    """What runs the graphs, by name and version."""
    if isinstance(session, RunnerSession):
        runtime = session.connection.hello.ort
        return f"hexgraft-runner, onnxruntime {runtime.version}" if runtime else "hexgraft-runner"
    return f"onnxruntime {onnxruntime.__version__}"
