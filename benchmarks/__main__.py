"""`python -m benchmarks [NAME ...] [--json]`: measure and print; exit 1 if a goal is missed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

from benchmarks.figure import Figure, machine, report

NAMES = ("export", "session", "decode", "loop", "drafts", "runner", "push", "tune")
ASKED = ("big_checkpoints", "npu", "npu_big", "peers")
"""Run only when named: they take gigabytes of disk."""


def main() -> int:
    as_json = "--json" in sys.argv
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or list(NAMES)
    unknown = [name for name in names if name not in NAMES + ASKED]
    if unknown:
        names = list(NAMES + ASKED)
        print(f"error: no benchmark named {unknown[0]}\n\nhint: one of {', '.join(names)}", file=sys.stderr)
        return 2
    if not as_json:
        print(" ".join(f"{key}={value}" for key, value in machine().items()))

    def every() -> Iterator[Figure]:
        for name in names:
            yield from importlib.import_module(f"benchmarks.{name}").figures()

    return int(any(figure.met is False for figure in report(every(), as_json=as_json)))


if __name__ == "__main__":
    sys.exit(main())
