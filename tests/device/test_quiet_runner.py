"""The runner has ONNX Runtime tell nobody of the phone it runs on, where nobody else would say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexgraft.host.bundle import Bundle
from hexgraft.host.runner.session import open_local_session
from hexgraft.host.session import causal
from hexgraft.models.quiet_runtime import VARIABLE


@pytest.mark.usefixtures("built_runner")
def test_a_runner_leaves_nothing_behind(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime keeps a number of the machine, and what it has not sent yet, in the user's cache."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    session = open_local_session(bundle)
    try:
        session.forward([3, 4], [0, 1], causal(0, 2))
    finally:
        session.close()
    assert list(home.rglob("*")) == []
