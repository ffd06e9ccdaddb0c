"""What holds for every test."""

from __future__ import annotations

import os
import signal
from typing import Any

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
