"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    # A shell ignores Ctrl-C for what it starts in the background, and so would the commands that tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
