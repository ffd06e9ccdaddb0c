"""One self-contained HTML page of a trace: every round's tree, the text by where its tokens came from, where
the time went, and what was accepted."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from hexgraft.host.stats import Stats, Tally
from hexgraft.host.traces.compare import candidates
from hexgraft.host.traces.trace import Trace, TraceRound
from hexgraft.host.tree import ROOT

PHASES = ("draft", "target", "target host", "verify", "graft")
OWN = "target"
_LONGEST = 12
"""Rows of an acceptance chart; deeper levels are rarely reached."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the text: its round and place there, and the class of its colour."""

    text: str
    round: int
    at: int
    origin: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One round in the charts over time: parts as (class, per cent of the chart's height)."""

    round: int
    label: str
    tokens: list[tuple[str, float]]
    seconds: list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Rate:
    """A row of an acceptance chart."""

    label: str
    accepted: int
    tried: int
    percent: float


def render_page(trace: Trace) -> str:
    """The page as one HTML text: no script, style, font or image comes from anywhere else."""
    assets = files("hexgraft.host.traces") / "page"
    texts = {name: (assets / name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")}
    environment = Environment(
        loader=DictLoader(texts),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = texts["page.js"]
    stats, sources = trace.stats(), _sources(trace)
    # Only this very script may run, so that no text of a model ever can.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        header=trace.header,
        finish=trace.finish,
        facts=_facts(trace),
        figures=_figures(trace, stats),
        sources=sources,
        phases=_phase_rows(stats),
        prompt=[_shown(trace.texts(), token) for token in trace.header.prompt],
        tokens=_tokens(trace, sources),
        bars=_bars(trace, sources),
        most=max((len(current.emitted) for current in trace.rounds), default=0),
        slowest=_ms(max((sum(r.seconds.values()) for r in trace.rounds), default=0.0)),
        by_depth=_rates(stats.by_depth, "depth"),
        by_rank=_rates(stats.by_rank, "rank"),
        data=_data(trace, sources),
        style=texts["page.css"],
        script=script,
        script_hash=digest,
    )


def _sources(trace: Trace) -> list[str]:
    """Drafters in the order they first appear; their place is the number of their colour."""
    seen = dict.fromkeys(source for current in trace.rounds for source in current.sources[1:])
    return list(seen)


def _origins(current: TraceRound, sources: list[str]) -> list[str]:
    """The colour class of every emitted token: its drafter's, the last one the target's own."""
    drafted = [f"s{sources.index(current.sources[node]) % 4}" for node in current.accepted[1:]]
    # A text may end with an accepted token: the walk does not go on to the node that carries it.
    end = current.accepted[-1]
    last = next(
        (
            node
            for node, parent in enumerate(current.parents)
            if parent == end and current.tokens[node] == current.emitted[-1]
        ),
        None,
    )
    return [*drafted, OWN if last is None else f"s{sources.index(current.sources[last]) % 4}"]


def _tokens(trace: Trace, sources: list[str]) -> list[Token]:
    texts = trace.texts()
    return [
        Token(_shown(texts, token), current.number, at, origin)
        for current in trace.rounds
        for at, (token, origin) in enumerate(zip(current.emitted, _origins(current, sources), strict=True))
    ]


def _shown(texts: dict[int, str], token: int) -> str:
    return texts.get(token, f"<{token}>")


def _bars(trace: Trace, sources: list[str]) -> list[Bar]:
    most = max((len(current.emitted) for current in trace.rounds), default=1)
    slowest = max((sum(current.seconds.values()) for current in trace.rounds), default=0.0) or 1.0
    bars = []
    for current in trace.rounds:
        spent = sum(current.seconds.values())
        label = f"round {current.number}: {_count(len(current.emitted), 'token')}, {_ms(spent)}"
        origins = _origins(current, sources)
        tokens = [
            (kind, 100 * origins.count(kind) / most)
            for kind in (OWN, *(f"s{i}" for i in range(4)))
            if kind in origins
        ]
        seconds = [
            (f"p{i}", 100 * current.seconds[phase] / slowest)
            for i, phase in enumerate(PHASES)
            if current.seconds.get(phase)
        ]
        bars.append(Bar(current.number, label, tokens, seconds))
    return bars


def _phase_rows(stats: Stats) -> list[tuple[str, str, str]]:
    """(class, phase, share) of the decode time."""
    total = stats.decode_seconds or 1.0
    return [
        (f"p{i}", phase, f"{100 * stats.seconds[phase] / total:.1f} %")
        for i, phase in enumerate(PHASES)
        if phase in stats.seconds
    ]


def _rates(tallies: list[Tally], what: str) -> list[Rate]:
    return [
        Rate(f"{what} {i + (what == 'depth')}", tally.accepted, tally.tried, 100 * tally.rate)
        for i, tally in enumerate(tallies[:_LONGEST])
    ]


def _facts(trace: Trace) -> list[tuple[str, str]]:
    """What ran, in words."""
    header, sampling = trace.header, trace.header.sampling
    widths = "any width" if header.widths is None else "widths " + ", ".join(map(str, header.widths))
    drawn = "greedy"
    if sampling.temperature:
        drawn = f"temperature {sampling.temperature:g}, seed {sampling.seed}"
    drafter = " ".join([header.drafter, *header.knobs])
    return [
        ("drafter", f"{drafter}, trees of {header.tree_size}"),
        ("draft model", header.draft or "none"),
        ("verifier", header.verifier),
        ("sampling", drawn + (", penalties" if sampling.penalised else "")),
        ("backend", f"{header.backend}, {widths}"),
        ("bundle", header.bundle[:12]),
    ]


def _figures(trace: Trace, stats: Stats) -> list[tuple[str, str, str]]:
    """(value, what, note)."""
    accepted = sum(tally.accepted for tally in stats.by_depth)
    drafted = stats.nodes - stats.rounds
    rows = [
        (f"{stats.tokens_per_round:.2f}", "tokens a round", "1.00 without trees"),
        (f"{stats.tokens}", "tokens", f"in {_count(stats.rounds, 'round')}"),
        (f"{stats.tokens_per_second:.1f}", "tokens a second", "prefill left out"),
        (_share(accepted, stats.tokens), "of the text drafted", "the rest is the target's own"),
        (_share(accepted, drafted), "of the drafts accepted", f"{accepted} of {drafted} nodes"),
    ]
    passes = trace.end.stats.get("draft_passes") if trace.end is not None else None
    if isinstance(passes, int) and passes:
        rows.append((f"{passes / max(1, stats.rounds):.1f}", "draft passes a round", f"{passes} in all"))
    else:
        rows.append((f"{100 * stats.host_share:.1f} %", "outside the target", "of the decode time"))
    return rows


def _data(trace: Trace, sources: list[str]) -> dict[str, Any]:
    """What the script draws trees from; short names, as there is one of each a node."""
    return {
        "texts": {str(token): text for token, text in trace.texts().items()},
        "sources": sources,
        "rounds": [_round(current, sources) for current in trace.rounds],
    }


def _round(current: TraceRound, sources: list[str]) -> dict[str, Any]:
    tops = [
        [[token, _round_off(logit), _round_off(chance)] for token, logit, chance in candidates(judged)]
        for judged in current.judged
    ]
    return {
        "n": current.number,
        "context": current.context,
        "width": current.width,
        "tokens": current.tokens,
        "parents": current.parents,
        "p": [_round_off(p) for p in current.probabilities],
        "s": [-1 if node == ROOT else sources.index(s) for node, s in enumerate(current.sources)],
        "accepted": current.accepted,
        "emitted": current.emitted,
        "margins": [_round_off(margin) for margin in current.margins],
        "top": tops,
        "ms": {phase: round(1000 * seconds, 3) for phase, seconds in current.seconds.items()},
        "degraded": current.degraded,
        "finish": current.finish,
    }


def _round_off(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.6g}")


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
