"""Runs the parity passes over a build on the emulator, and says which layer of a model is at fault where they
fail."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from hexgraft.export.htp.build import Build
from hexgraft.export.htp.head_text import HeadText, text_features
from hexgraft.export.htp.layers import float_runtime
from hexgraft.export.htp.parity import (
    THRESHOLDS,
    Parity,
    StateParity,
    compare,
    failures,
    gate_passes,
    parity_figures,
)
from hexgraft.export.htp.worst_layer import worst_layer
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.htp.session import HtpSession
from hexgraft.host.manifest import GraphEntry
from hexgraft.host.traces.replay import ForcedPass
from hexgraft.models.errors import ExportError

_QUIET = 20.0
"""Seconds without a word that a user may wait."""


def gate(build: Build, graphs: Sequence[GraphEntry], tokens: Sequence[int]) -> dict[str, dict[str, float]]:
    """Figures by graph file, those of the emulator's graphs that were run; ExportError if they miss the
    precision's threshold, unless the export is forced: then `passed` is 0 there."""
    figures: dict[str, dict[str, float]] = {}
    for capacity in build.capacities:
        figures |= _gate(build, graphs, tokens[:capacity], capacity)
    return figures


def _gate(
    build: Build, graphs: Sequence[GraphEntry], tokens: Sequence[int], capacity: int
) -> dict[str, dict[str, float]]:
    """The figures of the graphs of one capacity."""
    widths, model = build.host_widths, build.network.model
    precision = build.variant.precision.name
    bundle = with_graphs(build.bundle, build.role, graphs)
    what = f"{build.role} {build.variant.tag}"
    if len(build.capacities) > 1:
        what += f" over {capacity} slots"
    build.say(f"{what}: comparing with the fp32 graph on the emulator")
    passes = gate_passes(tokens[model.head is not None :], widths, build.htp.parity_rows, model.vocab)
    place: dict[str, Any] = {"widths": widths, "capacities": [capacity]}
    threads, runtime = build.htp.threads, float_runtime(build.network, build.htp.threads)
    reference = CpuSession(bundle, build.role, threads=threads, runtime=runtime, **place)
    soc = build.variant.socs[0].name
    session = HtpSession(bundle, build.role, soc=soc, precision=precision, **place)
    states = StateParity() if model.features else None
    hooks: dict[str, Any] = {} if states is None else {"watch": states.take}
    if model.head is not None:
        text = HeadText(bundle, reference, session, text_features(bundle, tokens, threads), max(widths))
        hooks = {"before": text.feed, "watch": text.watch}
        passes = [replace(forced, follows=(None,) * len(forced.tokens)) for forced in passes]
    try:
        total, by_width = compare(passes, reference, session, _Teller(build, passes), **hooks)
    finally:
        session.close()
        reference.close()
    missed = list(failures(total, THRESHOLDS[precision]))
    if states is not None and states.not_finite:
        missed.append(f"what draft heads read is not finite in {states.not_finite} of {total.rows} rows")
    build.say(f"{what}: {_figures(total, states)}")
    if missed:
        _refuse(build, what, missed, None if model.head is not None else worst_layer(build, passes[0]))
    verdict = {"passed": 0.0 if missed else 1.0}
    return {
        graph.file: {**parity_figures(by_width[graph.width]), **verdict}
        for graph in graphs
        if graph.provider == "htp-sim" and graph.width in by_width and graph.capacity == capacity
    }


def _refuse(build: Build, what: str, missed: Sequence[str], worst: str | None) -> None:
    """Raise ExportError unless the export is forced; `worst` says where in a model most noise is added."""
    if worst is not None:
        build.say(f"{what}: {worst}")
    if not build.htp.force:
        raise ExportError(
            f"{what} fails the parity gate: {'; '.join([*missed, worst] if worst else missed)}",
            'keep layers higher (--keep "LAYER:fp16", --min-agreement), or --force to record the failure',
        )


def _figures(total: Parity, states: StateParity | None) -> str:
    words = (
        f"{total.rows} rows, agreement {total.agreement:.1%} (differing rows are at most {total.margin:.2g} "
        f"apart), KL {total.kl:.3g}, SQNR {total.sqnr_db:.1f} dB"
    )
    if total.forced:
        words += f", perplexity {total.perplexity[1]:.4g} (fp32 {total.perplexity[0]:.4g})"
    return words + (f", states for draft heads {states.sqnr_db:.1f} dB" if states is not None else "")


class _Teller:
    """Says how far a slow comparison has come, now and then."""

    def __init__(self, build: Build, passes: Sequence[ForcedPass]) -> None:
        self._build = build
        self._done, self._total = 0, sum(len(forced.tokens) for forced in passes)
        self._said = time.monotonic()

    def __call__(self, rows: int) -> None:
        self._done += rows
        if time.monotonic() - self._said > _QUIET:
            self._said = time.monotonic()
            self._build.say(f"{self._build.role}: {self._done} of {self._total} rows compared")


def with_graphs(bundle: Bundle, role: str, graphs: Sequence[GraphEntry]) -> Bundle:
    """The bundle as it will be once `graphs` are entered in its manifest."""
    model = bundle.model(role)
    model = msgspec.structs.replace(model, graphs=[*model.graphs, *graphs])
    manifest = msgspec.structs.replace(bundle.manifest, **{role: model})
    return Bundle(bundle.path, manifest, bundle.digest)
