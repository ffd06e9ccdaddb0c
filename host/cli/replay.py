"""`hexgraft replay`: the passes of a trace forced through a session, compared row by row with another."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import quote
from typing import Any

import click
from rich import box
from rich.markup import escape

from hexgraft.host.adb.phone import ROOT
from hexgraft.host.adb.session import PROVIDERS
from hexgraft.host.backends import BACKENDS, check_provider, parse_width_option
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.finite import Finite
from hexgraft.host.cli.options import open_checked, open_role, verify_option
from hexgraft.host.cli.phone_options import build_options, build_where_it_is, refuse_unused
from hexgraft.host.cli.table import Table
from hexgraft.host.cli.threads import threads_option
from hexgraft.host.cli.tree_view import visible
from hexgraft.host.counted import counted
from hexgraft.host.session import Session
from hexgraft.host.traces.cache_check import NOISE, CacheCheck, Damage
from hexgraft.host.traces.replay import Figures
from hexgraft.host.traces.replay_report import Report, replay_trace
from hexgraft.host.traces.trace import Header, Trace
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.models.errors import FAILED, UsageError


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(BACKENDS), help="What to look into. Default: as traced.")
@click.option(
    "--provider",
    type=click.Choice(PROVIDERS),
    help="What computes there. Default: as traced, or cpu on another backend.",
)
@click.option("--widths", help="Its widths: `bundle`, numbers, or `any`. Default: as traced.")
@click.option("--reference", type=click.Choice(BACKENDS), default="cpu", show_default=True)
@click.option("--reference-provider", type=click.Choice(PROVIDERS), default="cpu", show_default=True)
@click.option("--reference-widths", help="The reference's widths. Default: those of the other.")
@threads_option
@click.option("-s", "--serial", envvar="ANDROID_SERIAL", help="With device: which phone, if several.")
@click.option(
    "--root", envvar="HEXGRAFT_DEVICE_ROOT", default=ROOT, help="With device: our folder on the phone."
)
@build_options
@click.option("--no-stay-awake", is_flag=True, help="With device: let the screen go off meanwhile.")
@click.option(
    "--check-cache", is_flag=True, help="After every pass compare the caches; name the first damaged cell."
)
@click.option(
    "--cache-noise",
    default=NOISE,
    show_default=True,
    type=Finite(min=0),
    help="Difference to the reference's cells that passes.",
)
@click.option("--worst", default=5, show_default=True, type=click.IntRange(min=0), help="Rows to list.")
@verify_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every row of every tree.")
def replay(trace: Path, bundle: Path, as_json: bool, **options: Any) -> int:
    """Force the passes of TRACE through two sessions of BUNDLE and compare their logits row by row.

    Nothing is chosen anew, so sessions of any precision can be compared. Exit code 1 if a cache is damaged or
    a logit is not finite.

    \b
    Examples:
      hexgraft replay letter.jsonl smollm2 --backend runner
      hexgraft replay letter.jsonl smollm2 --widths bundle --reference-widths any --check-cache
    """
    if trace.is_dir():
        given = quote(str(trace))
        raise UsageError(
            f"{trace} is a folder, and a trace is a file",
            f"hexgraft replay {quote(str(bundle))} {given}" if bundle.is_file() else "give the trace first",
        )
    recorded = read_trace(trace)
    opened = open_checked(bundle, options["no_verify"])
    header = recorded.header
    _check(header, opened)
    ours, theirs = _sides(header, opened, options)
    if all(ours[name] == theirs[name] for name in ("backend", "provider", "widths")):
        say("note: both sessions are the same; choose another with --backend, --widths or --reference-widths")
    other = open_role(opened, "target", theirs)
    against = open_role(opened, "target", ours)
    check = CacheCheck(against, other, options["cache_noise"]) if options["check_cache"] else None
    try:
        report = replay_trace(recorded, against, other, worst=options["worst"], check=check)
    finally:
        other.close()
        against.close()
    if as_json:
        sides = {"reference": _as_dict(against), "other": _as_dict(other)}
        cut = recorded.end is None
        print_json({"bundle": opened.digest, **sides, "cut_off": cut, **report.as_dict()})
    else:
        if recorded.end is None:
            say(f"{trace} was cut off after {counted(len(recorded.rounds), 'round')}: replaying those")
        _show(report, recorded, _words(other), _words(against))
    return 0 if report.sound else FAILED


def _check(header: Header, bundle: Bundle) -> None:
    if header.vocab_hash != bundle.manifest.tokenizer.vocab_hash:
        raise UsageError(
            f"the trace is of {header.target}, whose vocabulary is not that of this bundle "
            f"({bundle.target.name})",
            "replay it on the bundle it was recorded with",
        )
    if header.bundle != bundle.digest:
        say(
            f"note: the trace was recorded with another bundle, {header.bundle[:12]}; "
            f"this is {bundle.digest[:12]}"
        )


def _sides(header: Header, bundle: Bundle, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `open_role` for the reference and the other, what was not given taken from the
    trace."""
    backend, provider = header.place
    if options["backend"] is None and backend not in BACKENDS:
        raise UsageError(
            f"the trace was recorded on {header.backend!r}, which cannot be opened here",
            f"choose with --backend: {', '.join(BACKENDS)}",
        )
    if options["backend"] not in (None, backend):
        provider = "cpu"
    traced = None if header.widths is None else ",".join(map(str, header.widths))
    if header.whole and header.widths == sorted(bundle.target.widths):
        traced = "bundle"
    widths = options["widths"] or traced
    against = options["reference_widths"] or widths
    other = {
        "backend": options["backend"] or backend,
        "provider": options["provider"] or provider,
        "widths": None if widths == "any" else widths,
    }
    reference = {
        "backend": options["reference"],
        "provider": options["reference_provider"],
        "widths": None if against == "any" else against,
    }
    for side, backend, option in (
        (other, "--backend", "--widths"),
        (reference, "--reference", "--reference-widths" if options["reference_widths"] else "--widths"),
    ):
        check_provider(str(side["backend"]), str(side["provider"]), backend)
        parse_width_option(side["widths"], bundle, option)
    refuse_unused(str(other["backend"]), options["reference"])
    build_where_it_is(reference, other)
    return options | reference, options | other


def _as_dict(session: Session) -> dict[str, Any]:
    widths = session.spec.widths
    return {"backend": session.spec.provider, "widths": list(widths) if widths else None}


def _words(session: Session) -> str:
    widths = session.spec.widths
    return f"{session.spec.provider}, " + (
        "any width" if widths is None else "widths " + ",".join(map(str, widths))
    )


def _show(report: Report, trace: Trace, other: str, reference: str) -> None:
    out, texts = stdout(), trace.texts()
    out.print(f"{other}, against {reference}:\n")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in ("rows", "argmax", "mean KL", "max KL", "max error", "SQNR dB"):
        table.add_column(column, justify="right")
    for name, figures in (*report.phases.items(), ("all", report.total)):
        table.add_row(name, *_cells(figures), end_section=name != "all" and name == list(report.phases)[-1])
    out.print(table)
    perplexity = report.total.perplexity
    if not math.isnan(perplexity[0]):
        out.print(
            f"Perplexity of the forced tokens: {perplexity[0]:.6g} by the reference, "
            f"{perplexity[1]:.6g} by the other."
        )
    if report.total.max_error == 0 and not report.total.not_finite:
        out.print("Every logit is the same.")
    elif report.worst:
        _show_worst(report, texts)
    recorded = report.recorded
    if recorded.rows:
        out.print(
            f"Against the logits in the trace: {recorded.agreed} of {recorded.rows} best tokens the same, "
            f"max error {recorded.max_error:.3g}."
        )
    if report.total.not_finite:
        out.print(
            f"[bold red]{counted(report.total.not_finite, 'row')} with logits that are not finite.[/bold red]"
        )
    if report.cache_checked:
        out.print(_damage_words(report.damage))


def _cells(figures: Figures) -> list[str]:
    return [
        str(figures.rows),
        f"{100 * figures.agreement:.2f}%",
        _small(figures.kl),
        _small(figures.max_kl),
        _small(figures.max_error),
        "exact" if math.isinf(figures.sqnr_db) else f"{figures.sqnr_db:.1f}",
    ]


def _small(number: float) -> str:
    return f"{number:.1e}" if number else "0"


def _show_worst(report: Report, texts: dict[int, str]) -> None:
    table = Table("worst rows", "position", "token", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("KL", "max error", "reference says", "other says"):
        table.add_column(column, justify="right")
    for forced, node, row in report.worst:
        where = f"prefill, row {node}" if not forced.round else f"round {forced.round}, node {node}"
        shown = [escape(visible(texts.get(t, f"<{t}>"))) for t in (forced.tokens[node], *row.best)]
        table.add_row(
            where,
            str(forced.positions[node]),
            shown[0],
            _small(row.kl),
            _small(row.error),
            shown[1],
            "the same" if row.best[0] == row.best[1] else shown[2],
        )
    stdout().print(table)


def _damage_words(damage: Damage | None) -> str:
    if damage is None:
        return "Cache: no damage."
    where = f"layer {damage.layer}, slot {damage.slot}, {damage.part}, head {damage.head}, dim {damage.dim}"
    when = f"round {damage.round}" if damage.round else "prefill"
    more = f" ({damage.cells} such cells)" if damage.cells > 1 else ""
    if damage.kind == "changed":
        what = f"of the {damage.session} held {damage.expected:.6g} and now holds {damage.found:.6g}"
    else:
        what = f"holds {damage.found:.6g}, the reference {damage.expected:.6g}"
    return f"[bold red]Cache: damaged in {when}, {where}: it {what}{more}.[/bold red]"
