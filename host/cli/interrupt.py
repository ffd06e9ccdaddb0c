"""Ctrl-C: a round in progress is finished, so that text and cache stay whole, and what can go on says so."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hexgraft.models.errors import Interrupted


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether Ctrl-C was pressed. A second one raises KeyboardInterrupt."""
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:  # a job in the background: whoever started it wants no interrupts
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def resumable() -> Iterator[None]:
    """Around a command, or a part of one, that takes up what an interrupted one has done."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("the same command goes on where this one was") from None
