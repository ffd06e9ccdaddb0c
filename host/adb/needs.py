"""What hexgraft needs of a phone's own commands, found out before a file moves."""

from __future__ import annotations

from hexgraft.host.adb.errors import NoDevice
from hexgraft.host.adb.phone import Phone

COMMANDS = (
    *("cat", "chmod", "cp", "find", "flock", "grep", "head", "ln", "mkdir", "mv", "rm", "sha256sum", "sleep"),
    *("stat", "tail", "tee"),
)
"""Android 7 has no sha256sum, without which every file would count as damaged on its way."""

HINT = "use a phone with Android 10 or newer"


def missing_commands(phone: Phone) -> list[str]:
    """The commands of COMMANDS that a phone has not."""
    found = phone.run(
        f"for c in {' '.join(COMMANDS)}; do command -v $c > /dev/null || echo $c; done; true",
        "looking for commands",
    )
    return found.stdout.split()


def check_commands(phone: Phone) -> None:
    """Raise NoDevice where a phone lacks a command that files are moved with."""
    if missing := missing_commands(phone):
        raise NoDevice(lacking(phone, missing), HINT)


def lacking(phone: Phone, missing: list[str]) -> str:
    """The commands that a phone has not, in words."""
    return f"{phone.name} has no command {' and no '.join(missing)}"
