"""Stop strings: the answer's text ends right before the first of them, wherever token borders fall."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hexgraft.host.text import TextCodec, check_text
from hexgraft.models.errors import UsageError


class StopStrings:
    """Watches a text for strings that end it, character by character, so that how it was cut into pieces
    makes no difference. Text that may still become a stop string is held back.

    The first string to be complete ends the text; of two that end at one place, the longer one does.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise UsageError("a stop string is empty", "example: --stop END")
        check_text("".join(stops))
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece; what of the text can be shown now. Sets `found` when a stop string is
        complete, and nothing after it counts."""
        ready = ""
        for place, letter in enumerate(text):
            if self.found is not None:
                break
            if not self._stops:
                return text[place:]
            self._held += letter
            self.found = max((s for s in self._stops if self._held.endswith(s)), key=len, default=None)
            keep = len(self.found) if self.found else self._beginning()
            cut = len(self._held) - keep
            ready += self._held[:cut]
            self._held = "" if self.found else self._held[cut:]
        return ready

    def flush(self) -> str:
        """What was held back, for a text that ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        lengths = range(min(len(self._held), max(map(len, self._stops)) - 1), 0, -1)
        return next((n for n in lengths if any(s.startswith(self._held[-n:]) for s in self._stops)), 0)


class AnswerText:
    """The text of one answer after another, from the tokens a decoder emits: `ends` is the decoder's hook.

    `silent` are stop tokens, which end an answer and are no part of its text, special or not.
    """

    def __init__(self, codec: TextCodec, stops: Sequence[str] = (), silent: Collection[int] = ()) -> None:
        self._codec = codec
        self._strings = tuple(stops)
        self._silent = frozenset(silent)
        StopStrings(self._strings)
        self.begin()

    def begin(self, start: str = "") -> None:
        """Start on an answer whose text begins with `start`."""
        self._stream = self._codec.stream(after=start)
        self._stops = StopStrings(self._strings)
        self._shown: list[str] = []
        self._fresh: list[str] = [self._stops.push(start)]
        if self._stops.found is not None:
            raise UsageError(
                f"the answer's given beginning holds the stop string {self._stops.found!r}",
                "leave out that --stop, or shorten --prefix",
            )

    def ends(self, token: int) -> bool:
        """Take an emitted token; whether a stop string is complete with it."""
        if token not in self._silent:
            self._fresh.append(self._stops.push(self._stream.push([token])))
        return self._stops.found is not None

    def take(self) -> str:
        """Text that can be shown and has not been taken yet."""
        fresh = "".join(self._fresh)
        self._fresh.clear()
        self._shown.append(fresh)
        return fresh

    def finish(self) -> str:
        """The rest, once the answer has ended: unfinished characters, and what might have become a stop
        string."""
        if self._stops.found is None:
            self._fresh += [self._stops.push(self._stream.flush()), self._stops.flush()]
        return self.take()

    @property
    def text(self) -> str:
        """All that was taken."""
        return "".join(self._shown)
