"""Builds the runner with CMake, and says what is missing where it cannot."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path

from hexgraft.host.runner.local import RUNNER, source_folder
from hexgraft.host.runner.sdk import headers, sdk_folder
from hexgraft.models.errors import HexgraftError, UsageError

PRESETS = {
    "linux-x86_64": "linux-x86_64",
    "linux-aarch64": "linux-aarch64",
    "android-arm64": "android-arm64",
    "asan": "linux-x86_64",
    "fuzz": "linux-x86_64",
}
"""CMake presets, and the target whose SDK each is built against."""

TESTED = ("linux-x86_64", "linux-aarch64", "asan")
"""Presets that have the ctest programs: those whose programs run on the machine that builds them."""


class BuildError(HexgraftError):
    """A build that failed; the message carries the compiler's first complaint."""


def build_runner(
    preset: str, *, sdk: Path | None = None, tests: bool = False, jobs: int | None = None
) -> Path:
    """Configure and build a preset; returns the runner. With `tests` the ctest programs are built too."""
    if preset not in PRESETS:
        raise UsageError(f"unknown preset {preset!r}", f"one of: {', '.join(PRESETS)}")
    if tests and preset not in TESTED:
        raise UsageError(f"the preset {preset} has no tests", f"leave --tests out, or use {TESTED[0]}")
    source = source_folder()
    for tool in ("cmake", "ninja"):
        if shutil.which(tool) is None:
            raise BuildError(
                f"{tool} is not installed", "Debian: apt-get install cmake ninja-build g++ nlohmann-json3-dev"
            )
    if preset == "android-arm64" and "ANDROID_NDK_HOME" not in os.environ:
        raise UsageError(
            "there is no NDK: ANDROID_NDK_HOME is not set", "install Android's NDK and name its folder there"
        )
    include = find_headers(preset, sdk)
    folder = source.parent / "build" / "device" / preset
    version = importlib.metadata.version("hexgraft")
    _run(
        [
            *("cmake", "--preset", preset),
            f"-DHEXGRAFT_ORT_INCLUDE={include}",
            f"-DHEXGRAFT_VERSION={version}",
            f"-DHEXGRAFT_TESTS={'ON' if tests else 'OFF'}",
        ],
        source,
    )
    _run(["cmake", "--build", str(folder), *(["-j", str(jobs)] if jobs else [])], source)
    return folder / RUNNER


def find_headers(preset: str, sdk: Path | None = None) -> Path:
    """The headers are the same for every target, so those gathered for another one serve too."""
    if sdk is not None:
        return headers(sdk)
    own = sdk_folder(PRESETS[preset])
    for folder in (own, *sorted(own.parent.glob("*"))):
        if (folder / "include").is_dir():
            return headers(folder)
    return headers(own)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return
    lines = (done.stdout + done.stderr).splitlines()
    complaints = [line for line in lines if "error" in line.lower()] or lines[-1:]
    reason = complaints[0].strip() if complaints else f"exit status {done.returncode}"
    raise BuildError(f"{command[0]} failed: {reason}", f"see all of it: cd {folder} && {' '.join(command)}")
