"""What holds for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# One run is like the next one; with HEXGRAFT_SEARCH=1 every run tries other examples.
# How long an example takes says nothing about what it shows, least of all on a machine with other work.
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeat", derandomize=True, **PATIENT)
settings.register_profile("search", derandomize=False, **PATIENT)
settings.load_profile("search" if os.environ.get("HEXGRAFT_SEARCH") else "repeat")


def pytest_configure() -> None:
    # A shell ignores Ctrl-C for what it starts in the background, and so would the commands that tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is said is as wide and as plain as in a file, whatever terminal the tests are started from.
    os.environ["COLUMNS"] = "80"
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user of this machine had tuned is nothing to the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEXGRAFT_STATE", str(tmp_path_factory.getbasetemp() / "state"))
        yield


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the next chat in this process read lines as if a human typed them."""

    def type_lines(*lines: str) -> None:
        waiting = iter(lines)
        human = SimpleNamespace(terminal=True, read=lambda: next(waiting, None))
        monkeypatch.setattr("hexgraft.host.cli.chat.ChatInput", lambda: human)

    return type_lines
