"""The parity gate on real silicon: three passes on a hosted device against the fp32 graph on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hexgraft.export.htp.parity import THRESHOLDS, Parity, bushy_tree, failures
from hexgraft.export.htp.plan import packaged_text
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.hub.graphs import HostedBuild
from hexgraft.host.hub.session import HostedSession, RunGraph
from hexgraft.host.text import TextCodec
from hexgraft.host.traces.replay import ForcedPass, decode_passes, prefill_passes, replay, tree_pass

_TREE = 16
"""Nodes of the tree at most."""


@dataclass(slots=True)
class HostedRow:
    """The figures of one pass, which ran through the graph of `width` rows."""

    phase: str
    width: int
    figures: Parity = field(default_factory=Parity)


def hosted_parity(
    bundle: Bundle, role: str, build: HostedBuild, run: RunGraph, rows: int
) -> tuple[list[HostedRow], list[str]]:
    """Figures by pass, and in words what of all together misses the precision's threshold. `run` runs a graph
    on the device."""
    widths = sorted({width for width, _ in build.chains})
    capacity = min(slots for _, slots in build.chains)
    tokens = TextCodec(bundle).encode_raw(packaged_text("parity"))[:capacity]
    passes = three_passes(tokens, widths, rows, bundle.model(role).vocab)
    reference = CpuSession(bundle, role, widths=widths, capacities=[capacity])
    hosted = HostedSession(bundle, role, build, run, widths, capacity)
    total = Parity()
    found: dict[str, HostedRow] = {}
    try:
        for pair in replay(passes, reference, hosted):
            phase = pair.forced.phase
            width = next(width for width in widths if width >= len(pair.forced.tokens))
            total.take(pair)
            found.setdefault(phase, HostedRow(phase, width)).figures.take(pair)
    finally:
        hosted.close()
        reference.close()
    return list(found.values()), list(failures(total, THRESHOLDS[build.precision]))


def three_passes(tokens: Sequence[int], widths: Sequence[int], rows: int, vocab: int) -> list[ForcedPass]:
    """A prefill of `rows` at most in the widest graph, one row, and a tree where there is a width for one."""
    prefill = min(rows, widths[-1], len(tokens) - 4)
    passes = list(prefill_passes(tokens, prefill, widths[-1]))
    passes += decode_passes(tokens[: prefill + 2], prefill)
    size = max((width for width in widths if width <= _TREE), default=_TREE)
    if size > 1:
        tree, path = bushy_tree(tokens[prefill + 1 :], size, vocab)
        emitted = tokens[prefill + 2 : prefill + 2 + len(path)]
        passes.append(tree_pass(tree, prefill + 1, path, emitted, 2))
    return passes
