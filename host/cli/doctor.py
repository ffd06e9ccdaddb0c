"""`hexgraft doctor`: what this machine and a phone have and lack, line by line, each failure with its fix."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator

import click
import msgspec

from hexgraft.host.adb.checkup import FAILED, OK, UNKNOWN, WARNING, Finding, check_adb, check_phone
from hexgraft.host.adb.errors import ConnectionLost, NoDevice
from hexgraft.host.cli.console import coloured, print_json, visible
from hexgraft.host.cli.phone_options import chip, phone_options, refuse_unused
from hexgraft.host.runner.local import find_runner
from hexgraft.models.errors import CONNECTION_LOST, NO_DEVICE, HexgraftError
from hexgraft.models.errors import FAILED as EXIT_FAILED

_COLOURS = {OK: "green", WARNING: "yellow", FAILED: "red", UNKNOWN: "blue"}
_EXTRAS = {"onnxruntime_qnn": ("htp", "the Hexagon emulator"), "adbutils": ("device", "phones over adb")}


@click.command()
@phone_options
@click.option(
    "--backend",
    type=click.Choice(["cpu", "device"]),
    default="cpu",
    show_default=True,
    help="device: look at a phone too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def doctor(serial: str | None, root: str, backend: str, as_json: bool) -> int:
    """Check this machine, and with --backend device a phone: adb, chip, NPU access, space, runner.

    Exits with 1 if something failed, 3 if the phone went away meanwhile, 4 if none can be used.
    """
    refuse_unused(backend)
    found: list[Finding] = []
    code = 0

    def take(finding: Finding) -> None:
        found.append(finding)
        if not as_json:
            _show(finding)

    try:
        for finding in _checks(serial, root, backend):
            take(finding)
    except NoDevice:
        code = NO_DEVICE
    except ConnectionLost as error:
        take(Finding("phone", FAILED, error.message, error.hint or ""))
        code = CONNECTION_LOST
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in found])
    return code or (EXIT_FAILED if any(finding.state == FAILED for finding in found) else 0)


def _checks(serial: str | None, root: str, backend: str) -> Iterator[Finding]:
    yield from _host()
    if backend != "device":
        return
    failed = False
    for finding in check_adb():
        failed |= finding.state == FAILED
        yield finding
    if not failed:
        yield from check_phone(serial, root, chip)


def _host() -> Iterator[Finding]:
    version = importlib.metadata.version("hexgraft")
    yield Finding("hexgraft", OK, f"{version}, Python {platform.python_version()}, {platform.machine()}")
    yield Finding("ONNX Runtime", OK, importlib.metadata.version("onnxruntime"))
    for module, (extra, purpose) in _EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            fix = f'for {purpose}: pip install "hexgraft[{extra}]"'
            yield Finding(module, WARNING, "not installed", fix)
        else:
            yield Finding(module, OK, importlib.metadata.version(module))
    try:
        yield Finding("local runner", OK, str(find_runner()))
    except HexgraftError as error:
        yield Finding("local runner", WARNING, error.message, error.hint or "")


def _show(finding: Finding) -> None:
    mark = coloured(f"{finding.state:<8}", _COLOURS[finding.state])
    click.echo(f"{mark} {finding.what}: {visible(finding.said)}")
    if finding.fix:
        click.echo(f"         fix: {visible(finding.fix)}")
