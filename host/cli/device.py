"""`hexgraft device`: the runner, built, and what it is built against, gathered."""

from __future__ import annotations

import platform
from pathlib import Path

import click
import msgspec

from hexgraft.host.cli.console import print_json, say
from hexgraft.host.cli.loopback import loopback
from hexgraft.host.runner.build import PRESETS, build_runner
from hexgraft.host.runner.sdk import TARGETS, Sources, gather, sdk_folder

_HERE = f"linux-{platform.machine()}"
_EXISTING = click.Path(exists=True, path_type=Path)


@click.group()
def device() -> None:
    """Build the runner, and gather what it needs."""


@device.command()
@click.option("--preset", type=click.Choice(list(PRESETS)), default=_HERE, show_default=True)
@click.option(
    "--sdk", "sdk", type=_EXISTING, help="Folder `hexgraft device sdk` wrote, if not the usual one."
)
@click.option("--tests", is_flag=True, help="Build the C++ tests too (run them with ctest).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def build(preset: str, sdk: Path | None, tests: bool, as_json: bool) -> None:
    """Build the runner from the sources beside this installation and print its path.

    Needs CMake 3.25, Ninja, a C++17 compiler, nlohmann-json and the headers of `hexgraft device sdk`. The
    preset android-arm64 needs an NDK in ANDROID_NDK_HOME.
    """
    path = build_runner(preset, sdk=sdk, tests=tests)
    if as_json:
        print_json({"preset": preset, "path": str(path)})
    else:
        click.echo(path)


@device.command()
@click.option("--target", type=click.Choice(TARGETS), default=_HERE, show_default=True)
@click.option("--headers", type=_EXISTING, help="Folder that holds onnxruntime_cxx_api.h.")
@click.option(
    "--aar", "aars", type=_EXISTING, multiple=True, help="An AAR with headers and Android libraries."
)
@click.option("--wheel", "wheels", type=_EXISTING, multiple=True, help="A Python wheel with Linux libraries.")
@click.option("--qairt", type=_EXISTING, help="An unpacked QAIRT SDK.")
@click.option("--maven", multiple=True, help="An AAR by group:artifact:version, through mvn.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write, if not the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sdk(
    target: str,
    headers: Path | None,
    aars: tuple[Path, ...],
    wheels: tuple[Path, ...],
    qairt: Path | None,
    maven: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Gather headers and libraries for a target into one folder and print it.

    Without --headers, --aar or --maven, ONNX Runtime's headers come out of an npm package of 150 MB.
    Everything taken is listed in sdk.json with its sha256, and licence texts are kept beside it.
    """
    folder = output or sdk_folder(target)
    summary = gather(target, Sources(headers, aars, wheels, qairt, maven), folder, say)
    if as_json:
        print_json({"path": str(folder)} | msgspec.to_builtins(summary))
        return
    for name, taken in summary.files.items():
        say(f"{taken.sha256[:16]}  {taken.size:>10}  {name}  from {taken.source}")
    for name, source in summary.licenses.items():
        say(f"licence of {source}: {folder / name}")
    if not summary.licenses:
        say("no licence text was found in what was given; keep the ones you received")
    click.echo(folder)


device.add_command(loopback)
