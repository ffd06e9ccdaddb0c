"""`--reconnect`: a run on a phone keeps its cache in a file there, and goes on after a lost link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hexgraft.host.adb.device_runner import end_runner, running
from hexgraft.host.adb.phone import Phone, await_phone
from hexgraft.host.adb.session import DeviceSession
from hexgraft.host.cli.console import say, token_progress
from hexgraft.host.decode import Decoder
from hexgraft.host.runner.cache_file import CacheFile
from hexgraft.models.errors import CONNECTION_LOST, HexgraftError

_TRIES = 3
"""Times in a row that a run may be lost where it stood the last time, as where memory runs out again."""


class Recovery:
    """Of one run. `again` makes a decoder as the first one was made, on the phone of that serial. Without
    --reconnect, or elsewhere than on a phone, nothing is kept and nothing recovered; with a draft head the
    text is recovered without a file.
    """

    def __init__(
        self, decoder: Decoder, options: dict[str, Any], again: Callable[[str | None], Decoder]
    ) -> None:
        self._decoder = decoder
        # The phone meant was the only one, or had a number of its own, when the run began: neither need be so
        # once it comes back.
        session = decoder.session
        self._serial: str | None = session.serial if isinstance(session, DeviceSession) else options["serial"]
        self._root: str = options["root"]
        self._again = again
        self._seconds: int = options["reconnect"] if options["backend"] == "device" else 0
        self._file: CacheFile | None = None
        self._place, self._tries = -1, 0
        # A head reads the target's features of the whole text, which no file holds: all is computed again.
        useful = decoder.drafter.reader is None
        if self._seconds and useful and isinstance(decoder.session, DeviceSession):
            self._file = decoder.session.cache_file(_complain)

    def keep(self) -> None:
        """Let the phone's file follow what is committed."""
        if self._file is not None:
            self._file.keep(self._decoder.tokens[: self._decoder.committed])

    def recover(self, error: HexgraftError) -> bool:
        """Wait for the phone and go on where the text stands; False if that failed."""
        while self._seconds:
            if not self._may_try():
                say(f"\n{error.message}; it was lost {_TRIES + 1} times at the same place")
                return False
            say(f"\n{error.message}; waiting up to {self._seconds} s for the phone")
            try:
                phone = await_phone(self._serial, self._root, seconds=self._seconds)
                self._end_old(phone)
            except HexgraftError as failed:
                say(f"it did not come back: {failed.message}")
                return False
            try:
                self._resume(self._again(self._serial))
            except HexgraftError as failed:
                if failed.exit_code != CONNECTION_LOST:
                    say(f"the run cannot go on: {failed.message}")
                    return False
                error = failed
                continue
            return True
        return False

    def _may_try(self) -> bool:
        """False for a run that came no further in its last tries."""
        place = len(self._decoder.tokens) + (self._file.count if self._file is not None else 0)
        self._tries = 0 if place > self._place else self._tries + 1
        self._place = max(place, self._place)
        return self._tries < _TRIES

    def _end_old(self, phone: Phone) -> None:
        """A phone may notice a lost link later than we do, and have the old runner still."""
        old = self._decoder.session
        if isinstance(old, DeviceSession) and running(phone) == old.connection.hello.pid:
            end_runner(phone, patience=2.0)

    def _resume(self, fresh: Decoder) -> None:
        decoder, held = self._decoder, 0
        before = len(decoder.tokens) - 1
        if self._file is not None and isinstance(fresh.session, DeviceSession):
            self._file = fresh.session.cache_file(_complain)
            held = self._file.recall(decoder.tokens[:before])
        if held:
            say(f"{held} of {before} tokens come from the phone's cache file")
        with token_progress("prefill", before - held) as advance:

            def follow(count: int) -> None:
                self.keep()
                advance(count)

            decoder.resume(fresh.session, fresh.drafter, follow, held=held)


def _complain(problem: str) -> None:
    say(f"note: the cache is not kept on the phone: {problem}")
