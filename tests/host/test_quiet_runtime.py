"""ONNX Runtime leaves no identity of this machine behind, nor calls anybody, wherever hexgraft loads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.models.quiet_runtime import VARIABLE


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ONNX Runtime would keep a number of this machine, and what it has not sent yet."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    return path


def test_a_command_leaves_nothing_behind(bundle: Bundle, home: Path) -> None:
    words = ["-m", "hexgraft.host.cli", "run", bundle.path, "-p", "on", "--raw", "--max-tokens", "2"]
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 tokens in 1 round" in done.stderr
    assert list(home.rglob("*")) == []


@pytest.mark.parametrize("package", ["host.cpu_graph", "export.htp.search", "host.measure.bench"])
@pytest.mark.parametrize("given", [None, "0"])
def test_it_is_quiet_before_it_is_loaded(package: str, given: str | None) -> None:
    """As a library, too; who has chosen otherwise is left alone."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if given is not None:
        environment[VARIABLE] = given
    script = (
        "import builtins, os, sys\n"
        "real = builtins.__import__\n"
        "def watch(name, *rest):\n"
        "    if name == 'onnxruntime' and name not in sys.modules:\n"
        f"        print(os.environ.get({VARIABLE!r}))\n"
        "        sys.exit()\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = watch\n"
        f"import hexgraft.{package}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == (given or "1"), done.stderr
