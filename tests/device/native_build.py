"""Builds of the runner for tests, and the C++ tests in them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hexgraft.host.runner.build import TESTED, build_runner
from hexgraft.models.errors import UsageError

DEVICE = Path(__file__).resolve().parents[2] / "device"


def built(preset: str, *tools: str) -> Path:
    """The folder of a preset's build, made now if need be; skips where a tool or the headers are missing."""
    for tool in ("cmake", "ninja", *tools):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    try:
        return build_runner(preset, tests=preset in TESTED).parent
    except UsageError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def run_ctest(folder: Path) -> None:
    done = subprocess.run(["ctest", "--output-on-failure"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "100% tests passed" in done.stdout
    assert re.search(r"out of [1-9]", done.stdout)
