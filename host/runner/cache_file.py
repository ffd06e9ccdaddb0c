"""The file in which a runner keeps a session's committed slots, for another runner to go on from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from hexgraft.host.runner.session import RunnerSession


class CacheFile:
    """Of one session. `identity` is all that the numbers in its cache depend on; a file of another one is not
    used. `complain` is told once why a file cannot be written: the run goes on without.
    """

    def __init__(
        self,
        session: RunnerSession,
        identity: Sequence[object],
        complain: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._session = session
        self._complain = complain
        key = hashlib.sha256(repr(tuple(identity)).encode()).hexdigest()
        self._where = {"file": session.role, "key": key}
        self._asked = 0
        self.count = 0
        """Slots the file is known to hold."""
        self.usable = True

    def keep(self, tokens: Sequence[int]) -> None:
        """Let the file hold the slots of `tokens`, the committed text. What is new goes with the next
        message, and costs no round trip."""
        start = self._asked
        if len(tokens) <= start:  # what was recalled may be read again from its beginning
            return
        self._asked = len(tokens)
        if self.usable:
            fresh = [int(token) for token in tokens[start:]]
            operation = self._session.operation("keep", start=start, tokens=fresh, **self._where)
            self._session.later(operation, self._told)

    def recall(self, text: Sequence[int]) -> int:
        """Restore the slots of the text's beginning from the file; how many there are."""
        tokens = [int(token) for token in text]
        operation = self._session.operation("recall", tokens=tokens, **self._where)
        self.count = self._asked = int(self._session.send([operation])[0]["count"])
        return self.count

    def _told(self, result: dict[str, Any]) -> None:
        self.count = int(result["count"])
        if problem := result.get("problem"):
            self.usable = False
            self._complain(str(problem))
