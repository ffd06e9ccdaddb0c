"""What can go wrong with a loopback device, on demand. Everything may be changed while the device runs."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faults:
    """`drops` are byte counts over both directions of the link: after each, the link is cut once.

    `space` is the size of the data partition in bytes. `strip_exec` loses x bits of pushed files, `noexec`
    makes chmod do nothing as well. `refuse` never accepts the host's key. `no_shell_v2` is a phone from
    before Android 7. `rate` is the link's speed in bytes/s. `corrupt` flips the byte at that offset of the
    next pushed file, or of the next standard input of a shell, that is long enough. `kill_after` kills every
    process of the device once that many bytes went to the standard input of one shell.
    """

    drops: deque[int] = field(default_factory=deque)
    space: int | None = None
    strip_exec: bool = False
    noexec: bool = False
    refuse: bool = False
    no_shell_v2: bool = False
    rate: float | None = None
    corrupt: int | None = None
    kill_after: int | None = None


class Link:
    """Counts what passes between host and device, and says when it is time to cut."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._lock = threading.Lock()
        self._since_drop = 0
        self._free_at = 0.0
        self.received = 0
        """Payload bytes that came from the host over all connections, up to where the link was cut."""
        self.cut_off = 0
        """Of those, bytes of payloads the cut came in the middle of: they never reached a service."""

    def _wait(self, seconds: float) -> None:
        """Let a payload take its time on the link, which carries one after the other."""
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + seconds
            wait = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait))

    def cut_after(self, *counts: int) -> None:
        """Cut the link after so many bytes from now, and again after each further count."""
        with self._lock:
            self._since_drop = 0
            self._faults.drops.extend(counts)

    def carry(self, count: int, *, received: bool) -> bool:
        """Account for a payload of `count` bytes; True if the link is to be cut before it is delivered."""
        if self._faults.rate:
            self._wait(count / self._faults.rate)
        with self._lock:
            left = self._faults.drops[0] - self._since_drop if self._faults.drops else count + 1
            arrived = min(count, max(0, left)) if received else 0
            self.received += arrived
            self._since_drop += count
            if count < left:
                return False
            self.cut_off += arrived
            self._faults.drops.popleft()
            self._since_drop = 0
        return True
