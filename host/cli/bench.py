"""`hexgraft bench`: what passes cost in a place, as a table, a profile for others to read, and a picture."""

from __future__ import annotations

import importlib.metadata
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hexgraft.host.adb.facts import gather
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import say, stdout, token_progress
from hexgraft.host.cli.finite import Finite
from hexgraft.host.cli.options import open_checked, open_role, session_options, verify_option
from hexgraft.host.cli.phone_options import chip
from hexgraft.host.cli.table import Table
from hexgraft.host.cli.typed import typed_options
from hexgraft.host.counted import counted
from hexgraft.host.lab.plot import check_plot
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.measure.bench import PhoneWatch
from hexgraft.host.measure.bench import bench as take
from hexgraft.host.measure.latency import Plan, measured_widths
from hexgraft.host.measure.plot import plot_profile
from hexgraft.host.measure.profile import (
    Conditions,
    LatencyProfile,
    ModelTimes,
    Spread,
    check_output,
    encode_profile,
    write_profile,
)
from hexgraft.host.session import Session
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import UsageError

_TOKENS = 48
_TOKENS_ON_A_PHONE = 256


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--fills", default="64,256", show_default=True, help="Tokens in the cache to measure passes with."
)
@click.option(
    "--repeats", default=15, show_default=True, type=click.IntRange(min=1), help="Measurements of each pass."
)
@click.option("--warmup", default=2, show_default=True, type=click.IntRange(min=0), help="Ones not counted.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=4),
    help=f"Tokens of plain decoding for the first and the sustained speed. Default: {_TOKENS}, on a phone "
    f"{_TOKENS_ON_A_PHONE}.",
)
@click.option(
    "--cool-to",
    metavar="DEGREES",
    default=45.0,
    show_default=True,
    type=Finite(min=0),
    help="With --backend device: begin when no part of the phone is warmer; 0 to begin at once.",
)
@click.option(
    "--cool-timeout",
    metavar="SECONDS",
    default=120.0,
    show_default=True,
    type=Finite(min=0),
    help="Begin after so long all the same.",
)
@session_options
@verify_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the profile to this file.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture too: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile instead of the table.")
def bench(bundle: Path, **options: Any) -> None:
    """Measure what passes of BUNDLE cost, by their rows and the tokens in the cache.

    Widths are measured in turn after a warm-up, so that a machine that slows down slows all of them; medians
    and quartiles are shown. On a phone temperatures, clocks, battery and screen are noted too. The profile is
    what `hexgraft tune` chooses trees by.

    \b
    Examples:
      hexgraft bench smollm2 --plot passes.png
      hexgraft bench phone --backend device --provider htp -o phone.json
    """
    if options["plot"] is not None:
        check_plot(options["plot"])
    output: Path | None = options["output"]
    if output is not None:
        check_output(output)
    fills = take_fills(options["fills"])
    tokens = options["max_tokens"] or (_TOKENS_ON_A_PHONE if options["backend"] == "device" else _TOKENS)
    opened = open_checked(bundle, options["no_verify"])
    profile = take_profile(opened, options, Plan(fills, options["repeats"], options["warmup"], tokens))
    # Shown first: a write that fails then loses no measurement.
    if options["as_json"]:
        click.echo(encode_profile(profile).decode(), nl=False)
    else:
        show_profile(profile)
    if output is not None:
        write_profile(profile, output)
        say(f"wrote {output}")
    if options["plot"] is not None:
        plot_profile(profile, options["plot"])
        say(f"wrote {options['plot']}")


def take_profile(bundle: Bundle, options: dict[str, Any], wanted: Plan) -> LatencyProfile:
    """Measure where the options of `session_options` say; on a phone also as `cool_to` and `cool_timeout`."""
    codec = TextCodec(bundle)
    text = LAB_PROMPTS[0].text
    prompt = codec.encode_chat([{"role": "user", "content": text}]) if codec.has_template else None
    typed = "fills" in typed_options()
    with ExitStack() as stack:

        def plan(session: Session) -> Plan:
            if typed and session.spec.role == "target":
                check_fills(wanted, session)
            bar = token_progress(f"measuring the {session.spec.role}", wanted.passes(session))
            advance = stack.enter_context(bar)
            return replace(wanted, progress=lambda: advance(1))

        return take(
            bundle,
            lambda role: open_role(bundle, role, options),
            prompt or codec.encode_raw(text),
            plan,
            by=f"hexgraft {importlib.metadata.version('hexgraft')}",
            threads=options["threads"],
            watch=phone_watch(options) if options["backend"] == "device" else None,
        )


def phone_watch(options: dict[str, Any]) -> PhoneWatch:
    """How the bench looks at the phone that the options name."""
    phone = open_phone(options["serial"], options["root"])
    return PhoneWatch(
        lambda: gather(phone), chip, options["cool_to"] or None, options["cool_timeout"], note=say
    )


def take_fills(text: str) -> tuple[int, ...]:
    """Cache fills out of a list like "64,256"."""
    try:
        fills = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        fills = ()
    if not fills or fills[0] < 0:
        raise UsageError(f"--fills {text!r} is not a list of token counts", "example: --fills 64,256")
    return fills


def check_fills(wanted: Plan, session: Session) -> None:
    """Raise UsageError where a fill leaves no room for the widest pass."""
    left_out = set(wanted.fills) - set(wanted.fills_of(session))
    if left_out:
        most = session.spec.capacity - max(measured_widths(session))
        raise UsageError(
            f"--fills {max(left_out)} does not fit: the target has {session.spec.capacity} slots, and "
            "the widest pass takes some",
            f"give at most {most}",
        )


def show_profile(profile: LatencyProfile) -> None:
    """Tables of passes, and a line each for everything else."""
    out = stdout()
    machine = profile.machine
    facts = [machine.name, machine.chip, machine.system, machine.runtime, profile.backend]
    facts += [f"{machine.cores} cores"] if machine.cores else []
    facts += [f"load {machine.load}"] if machine.load is not None else []
    out.print(", ".join(fact for fact in facts if fact))
    for model in filter(None, (profile.target, profile.draft)):
        out.print(_table(model))
        for each in model.cache:
            out.print(f"{each.operation} of {counted(each.rows, 'row')}: {_ms(each.time)}")
    if profile.host_round is not None:
        out.print(f"beside its pass, a plain round takes {_ms(profile.host_round)}")
    if profile.row is not None:
        out.print(f"fetching one row more of a pass takes {_ms(profile.row)}")
    if profile.endurance is not None:
        speeds = profile.endurance
        out.print(
            f"plain decoding, {speeds.tokens} tokens: {speeds.first:.1f} tokens/s at first, "
            f"{speeds.sustained:.1f} in the end"
        )
    if profile.cooling:
        out.print(f"waited {profile.cooling:.0f} s for the phone to cool")
    for when, state in (("before", profile.before), ("after", profile.after)):
        if state is not None:
            out.print(f"{when}: {_state(state)}")


def _table(model: ModelTimes) -> Table:
    table = Table(title=f"{model.name}: a pass", title_justify="left")
    for column in ("rows", "in the cache", "ms (quartiles)", "ms in the graph", "against one row"):
        table.add_column(column, justify="right")
    ones = {each.fill: each.seconds for each in model.passes if each.width == model.passes[0].width}
    for each in model.passes:
        one = ones.get(each.fill)
        table.add_row(
            str(each.width),
            str(each.fill),
            _ms(each.call or each.graph).replace(" ms", ""),
            f"{1e3 * each.graph.median:.2f}",
            f"{each.seconds / one:.2f}x" if one else "",
        )
    return table


def _ms(spread: Spread) -> str:
    return f"{1e3 * spread.median:.2f} ms ({1e3 * spread.low:.2f}-{1e3 * spread.high:.2f})"


def _state(state: Conditions) -> str:
    parts = []
    if state.temperatures:
        zone = max(state.temperatures, key=lambda name: state.temperatures[name])
        parts.append(f"{state.temperatures[zone]:.0f} °C ({zone})")
    if state.frequencies:
        clocks = [f"{frequency / 1e6:.2f}" for frequency in state.frequencies.values()]
        parts.append(f"clocks {' '.join(clocks)} GHz")
    if state.battery is not None:
        parts.append(f"battery {state.battery} %" + (", charging" if state.plugged else ""))
    if state.awake is not None:
        parts.append("screen on" if state.awake else "screen off")
    return ", ".join(parts) or "nothing known"
