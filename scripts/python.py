"""Says in one sentence what the Python that runs this lacks for building hexgraft's environment.

It runs under whatever `python3` is: no syntax or module newer than Python 3.6.
"""
# ruff: noqa: UP031

import importlib.util
import sys

OLDEST = (3, 11)


def lacking():
    # type: () -> tuple[str, str] | None
    """What is missing, and what to type; None if nothing is."""
    have = "%d.%d" % sys.version_info[:2]
    want = "%d.%d" % OLDEST
    if sys.version_info[:2] < OLDEST:
        return (
            "%s is Python %s, hexgraft needs %s or newer" % (sys.executable, have, want),
            "install a newer Python and name it: make PYTHON=python%s" % want,
        )
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            return (
                "%s cannot make virtual environments: its module %s is missing" % (sys.executable, module),
                "on Debian and Ubuntu: apt-get install python3-venv (or python%s-venv)" % have,
            )
    return None


if __name__ == "__main__":
    found = lacking()
    if found:
        sys.exit("error: %s\nhint: %s" % found)
