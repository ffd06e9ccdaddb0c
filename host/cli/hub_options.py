"""The options of `hexgraft export --via aihub`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from hexgraft.export.htp.soc import find_socs
from hexgraft.export.hub.compile import HubCompiler, PlannedJob
from hexgraft.export.hub.target import (
    HubTarget,
    choose_release,
    device_again,
    devices_for,
    find_targets,
    short_version,
)
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.table import Table
from hexgraft.host.cli.typed import typed_options
from hexgraft.host.htp.qnn import MODULE, qairt_version, require_qnn
from hexgraft.host.hub.book import JobBook
from hexgraft.host.hub.desk import Desk
from hexgraft.host.hub.errors import HubLogin
from hexgraft.host.hub.service import HostedDevice, Service, open_service, require_client
from hexgraft.models.errors import UsageError


def hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the NPU's binaries are compiled."""
    for option in reversed(
        (
            click.option(
                "--via",
                type=click.Choice(("local", "aihub")),
                default="local",
                show_default=True,
                help="aihub compiles at Qualcomm AI Hub (docs/aihub.md); it implies --target htp.",
            ),
            click.option("--device", help="With aihub: a device by name, in place of --soc."),
            click.option("--qairt", help="With aihub: the QAIRT release. Default: onnxruntime-qnn's."),
            click.option("--dry-run", is_flag=True, help="With aihub: only say which jobs would run."),
        )
    ):
        command = option(command)
    return command


@dataclass
class HubPlan:
    """An export through AI Hub: with whom, for what, and afterwards what a dry run found. `devices` are those
    that may stand for each chip."""

    service: Service | None
    target: HubTarget
    devices: dict[str, list[HostedDevice]]
    dry: bool
    made: HubCompiler | None = None

    def compiler(self, folder: Path) -> HubCompiler:
        """The compiler, its job book in `folder`; its devices are those of the jobs in there."""
        desk, target = None, self.target
        if self.service is not None:
            desk = Desk(self.service, JobBook(folder, self.service.address), say)
            jobs = desk.book.jobs.values()
            again = {
                soc: device_again(chosen, self.devices[soc], jobs, say)
                for soc, chosen in target.devices.items()
            }
            target = replace(target, devices=again)
        self.made = HubCompiler(desk, target, say, self.dry)
        return self.made

    def show(self, as_json: bool) -> None:
        """The jobs of a dry run."""
        jobs = self.made.planned if self.made else []
        if as_json:
            print_json({"jobs": [msgspec.to_builtins(job) for job in jobs]})
            return
        show_jobs(jobs)


def take_hub(options: dict[str, Any]) -> HubPlan | None:
    """Take the options above out of `options` and fill in the chips they mean; None for the local compiler.

    Raises UsageError where they clash, and whatever AI Hub answers.
    """
    via, name, qairt, dry = (options.pop(key) for key in ("via", "device", "qairt", "dry_run"))
    if via != "aihub":
        for option, value in (("--device", name), ("--qairt", qairt), ("--dry-run", dry)):
            if value:
                raise UsageError(f"{option} is for AI Hub", "add --via aihub")
        return None
    if options["place"] == "cpu" and "place" in typed_options():
        raise UsageError("--via aihub compiles for the NPU, not for the CPU", "leave out --target cpu")
    require_client("--via aihub")
    options["place"] = "htp"
    if not options["socs"] and not name:
        raise UsageError(
            "--via aihub needs a device or a chip", 'example: --device "Samsung Galaxy S24", or --soc SM8650'
        )
    socs = find_socs(options["socs"])
    service = _service(dry and name is None)
    if service is None:
        devices = {soc.name: HostedDevice(f"any with {soc.name}", "") for soc in socs}
        fitting: dict[str, list[HostedDevice]] = {}
        offered: list[tuple[str, bool]] = []
    else:
        listed = service.devices()
        socs, devices = find_targets(listed, name, socs)
        fitting = {soc.name: devices_for(listed, name, soc) for soc in socs}
        offered = service.releases()
    here = qairt_version() if importlib.util.find_spec(MODULE) else None
    asked, words = choose_release(offered, qairt, here)
    if here is None or short_version(here) != words:
        say(f"AI Hub compiles with QAIRT {words}: the runtime on the phone must be of that release")
    options["socs"] = tuple(soc.name for soc in socs)
    options["host_widths"] = options["host_widths"] or "none"
    if options["host_widths"] != "none":
        _check_emulator(words)
    return HubPlan(service, HubTarget(devices, asked), fitting, dry)


def _service(optional: bool) -> Service | None:
    try:
        return open_service(note=say)
    except HubLogin as error:
        if not optional:
            raise
        say(f"{error.message}: taking AI Hub's devices and releases as given")
        return None


def _check_emulator(release: str) -> None:
    """Graphs for the emulator must be of its own release; better to hear of it before anything is paid."""
    require_qnn("--host-widths with --via aihub")
    here = short_version(qairt_version())
    if here != release:
        raise UsageError(
            f"AI Hub would compile with QAIRT {release}, the emulator here is of {here}",
            f"leave out --host-widths, or use --qairt {here} if it is offered",
        )


def show_jobs(jobs: list[PlannedJob]) -> None:
    table = Table("job", "of", "device", "state", "upload", box=None)
    for job in jobs:
        upload = f"{job.upload / 1e6:.1f} MB" if job.upload else "-"
        table.add_row(job.kind, job.title, job.device, job.state, upload)
    stdout().print(table)
    new = [job for job in jobs if job.submitted]
    total = sum(job.upload for job in jobs)
    say(f"{len(new)} of {len(jobs)} jobs would be submitted, {total / 1e6:.1f} MB uploaded, uncompressed")
