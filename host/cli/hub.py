"""`hexgraft hub`: Qualcomm AI Hub's devices, and a bundle timed and compared on one of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from hexgraft.export.htp.soc import find_soc
from hexgraft.export.hub.parity import HostedRow, hosted_parity
from hexgraft.export.hub.target import device_again, devices_for, find_device, soc_of
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.options import open_checked, verify_option
from hexgraft.host.cli.table import Table
from hexgraft.host.hub.book import JobBook, work_folder
from hexgraft.host.hub.desk import Desk
from hexgraft.host.hub.errors import JobFailed
from hexgraft.host.hub.graphs import HostedBuild, HostedModels, check_device, hosted_build, run_graph
from hexgraft.host.hub.profile import GraphTimes, latency_profile, profile_model
from hexgraft.host.hub.service import HostedDevice, open_service
from hexgraft.host.measure.profile import check_output, encode_profile, write_profile
from hexgraft.models.errors import FAILED

Command = Callable[..., Any]
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def hub() -> None:
    """Qualcomm AI Hub: its phones, for those who have none (docs/aihub.md).

    Needs an account there, its token, and `pip install 'hexgraft[hub]'`. To compile there:
    `hexgraft export --via aihub`.
    """


def _bundle_options(command: Command) -> Command:
    for option in reversed(
        (
            click.argument("bundle", type=click.Path(path_type=Path)),
            click.option("--device", "name", required=True, help="A device by name, see `hub devices`."),
            click.option(
                "--soc",
                callback=lambda context, parameter, name: find_soc(name).name if name else None,
                help="Which of several builds, by its chip. Default: the device's.",
            ),
            click.option(
                "--precision", help="Which of several builds, by its precision. Default: the first."
            ),
        )
    ):
        command = option(command)
    return command


@hub.command()
@_JSON
def login_check(as_json: bool) -> None:
    """Ask AI Hub whose token it is, and say so."""
    service = open_service(note=say)
    user = service.user()
    if as_json:
        print_json({"user": user, "service": service.address})
    else:
        click.echo(f"{user} at {service.address}")


@hub.command()
@click.option("--chip", help="Only those with this chip, such as SM8650.")
@_JSON
def devices(chip: str | None, as_json: bool) -> None:
    """List AI Hub's devices: chip, NPU generation, system, and whether hexgraft knows the chip."""
    wanted = find_soc(chip) if chip else None
    found = [device for device in open_service(note=say).devices() if wanted in (None, soc_of(device))]
    if as_json:
        print_json([_device_json(device) for device in found])
        return
    table = Table("device", "chip", "NPU", "system", "hexgraft", box=None)
    for device in sorted(found, key=lambda device: (device.name, device.os)):
        soc = soc_of(device)
        chips = " ".join(value for value in device.values("chipset") if not value.startswith("qualcomm-"))
        npu = " ".join(value.upper() for value in device.values("hexagon"))
        table.add_row(device.name, chips.upper(), npu, device.system, soc.title if soc else "-")
    stdout().print(table)


def _device_json(device: HostedDevice) -> dict[str, Any]:
    soc = soc_of(device)
    return {
        "name": device.name,
        "os": device.os,
        "soc": soc.name if soc else None,
        "attributes": list(device.attributes),
    }


class _Bench:
    """A bundle's builds for a device, and the desk that its jobs go through."""

    def __init__(self, bundle: Bundle, desk: Desk, name: str, soc: str | None, precision: str | None) -> None:
        self.bundle, self.desk = bundle, desk
        listed, jobs = desk.service.devices(), desk.book.jobs.values()
        self.device = device_again(find_device(listed, name), devices_for(listed, name, None), jobs, say)
        chip = soc_of(self.device)
        self.chip = chip.title if chip else ""
        roles = ["target", *(["draft"] if bundle.draft else [])]
        built = {graph.htp.soc for graph in bundle.target.graphs if graph.htp}
        soc = soc or (chip.name if chip and chip.name in built else None)
        self.builds: dict[str, HostedBuild] = {}
        for role in roles:
            self.builds[role] = hosted_build(bundle, role, soc, precision)
            check_device(self.builds[role], self.device)


@contextmanager
def _bench(bundle: Bundle, name: str, soc: str | None, precision: str | None) -> Iterator[_Bench]:
    service = open_service(note=say)
    with work_folder(bundle.path) as folder:
        desk = Desk(service, JobBook(folder, service.address), say)
        yield _Bench(bundle, desk, name, soc, precision)


@hub.command()
@_bundle_options
@click.option(
    "--iterations", default=50, show_default=True, type=click.IntRange(1, 1000), help="Runs of each graph."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the profile to this file.")
@verify_option
@click.option("--json", "as_json", is_flag=True, help="Print the profile instead of the table.")
def profile(
    bundle: Path,
    name: str,
    soc: str | None,
    precision: str | None,
    iterations: int,
    output: Path | None,
    no_verify: bool,
    as_json: bool,
) -> int:
    """Time every graph of BUNDLE on a hosted device.

    The profile is what `hexgraft bench` writes on a phone of one's own, and `hexgraft tune` reads it. Widths
    that fail on the device are left out, and the exit code is 1.
    """
    if output is not None:
        check_output(output)
    opened = open_checked(bundle, no_verify)
    with _bench(opened, name, soc, precision) as bench:
        times: list[GraphTimes] = []
        troubles: list[JobFailed] = []
        for role, build in bench.builds.items():
            ran, failed = profile_model(bench.desk, opened, role, build, bench.device, iterations)
            times += ran
            troubles += failed
        by = f"hexgraft {importlib.metadata.version('hexgraft')}"
        found = latency_profile(opened, bench.device, bench.chip, bench.builds, times, by)
    # Shown first: a write that fails then loses nothing that was paid for.
    if as_json:
        click.echo(encode_profile(found).decode(), nl=False)
    else:
        _show_times(times)
    if output is not None:
        write_profile(found, output)
        say(f"wrote {output}")
    for trouble in troubles:
        say(f"left out: {trouble.message}; {trouble.hint}")
    return FAILED if troubles else 0


def _show_times(times: list[GraphTimes]) -> None:
    table = Table("model", "rows", "slots", "ms (quartiles)", "load ms", "peak MB", box=None)
    for each in times:
        spread = f"{1e3 * each.graph.median:.2f}"
        if each.graph.count:
            spread += f" ({1e3 * each.graph.low:.2f} to {1e3 * each.graph.high:.2f})"
        load = f"{1e3 * each.load:.0f}" if each.load else "-"
        peak = f"{each.peak / 1e6:.0f}" if each.peak else "-"
        table.add_row(each.role, str(each.size[0]), str(each.size[1]), spread, load, peak)
    stdout().print(table)


@hub.command()
@_bundle_options
@click.option("--rows", default=32, show_default=True, type=click.IntRange(1, 128), help="Rows to prefill.")
@click.option("--force", is_flag=True, help="Exit with 0 whatever the comparison says.")
@verify_option
@_JSON
def run(
    bundle: Path,
    name: str,
    soc: str | None,
    precision: str | None,
    rows: int,
    force: bool,
    no_verify: bool,
    as_json: bool,
) -> int:
    """Run a prefill, a decode and a tree pass of BUNDLE on a hosted device, and compare with the CPU.

    Each pass is an inference job (one a part), whose logits are held against the fp32 graph's on this
    machine. Exits with 1 if they miss what an export's parity gate asks of the precision.
    """
    opened = open_checked(bundle, no_verify)
    with _bench(opened, name, soc, precision) as bench:
        models = HostedModels(bench.desk, opened)
        work = partial(run_graph, bench.desk, models, bench.device)
        found, missed = hosted_parity(opened, "target", bench.builds["target"], work, rows)
        jobs = [{"job_id": entry.job_id, "url": entry.url} for entry in bench.desk.used]
    if as_json:
        passes = [{"pass": row.phase, "width": row.width, **row.figures.as_dict()} for row in found]
        print_json({"device": bench.device.name, "passes": passes, "missed": missed, "jobs": jobs})
    else:
        _show_parity(found)
        for words in missed:
            say(f"misses the parity gate: {words}")
    return FAILED if missed and not force else 0


def _show_parity(found: list[HostedRow]) -> None:
    table = Table(
        "pass", "rows", "width", "best token agrees", "ties", "KL", "SQNR dB", "largest error", box=None
    )
    for row in found:
        figures = row.figures
        table.add_row(
            row.phase,
            str(figures.rows),
            str(row.width),
            f"{figures.agreement:.1%}",
            str(figures.ties),
            f"{figures.kl:.2e}",
            f"{figures.sqnr_db:.1f}",
            f"{figures.max_error:.3g}",
        )
    stdout().print(table)
