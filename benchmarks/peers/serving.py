"""What every worker script shares: one request a line on standard input, one answer a line on standard
output.

Workers run in environments of their own, which have no hexgraft: this file needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


class Clock:
    """Counts tokens and times them from the first ones on, so that the prompt is not in the figure."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._first = 0
        self._begin = self._end = (0.0, 0.0)

    def add(self, tokens: Iterable[int]) -> None:
        """Tokens that have come just now."""
        self.tokens += tokens
        self._end = time.perf_counter(), time.process_time()
        if not self._first:
            self._first, self._begin = len(self.tokens), self._end

    def answer(self, count: int) -> dict[str, Any]:
        timed = len(self.tokens) - self._first
        wall, cpu = (end - begin for end, begin in zip(self._end, self._begin, strict=True))
        return {"tokens": self.tokens[:count], "timed": timed, "seconds": wall, "cpu_seconds": cpu}


def serve(load: Callable[[str, int, str], Callable[[list[int], int], Clock]]) -> None:
    """`load(model, threads, mode)` gives a function (prompt, tokens) -> Clock.

    Whatever a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    model, threads, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    try:
        generate = load(model, threads, mode)
    except Exception as error:  # whatever a foreign library raises is what the driver shows
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = generate(request["prompt"], request["count"]).answer(request["count"])
        except Exception as error:  # as above
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers)
