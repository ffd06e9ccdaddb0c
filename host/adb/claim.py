"""The right to change our folders on a phone: one command's at a time, for as long as its link lasts.

Two pushes at once would append to the same unfinished files and end one another's writers.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from hexgraft.host.adb.errors import Busy, CommandFailed, ConnectionLost
from hexgraft.host.adb.phone import TIMEOUT, Phone
from hexgraft.host.adb.shell import LOST_HINT, ShellStream, quote

PATIENCE = 5.0
"""Seconds that another command may take to finish."""

_HELD = 75
# The shell has the lock until its input ends: the kernel frees it, however that comes. A holder that is one
# of this command's own is what a lost link left, which the phone has not noticed yet.
_TAKE = """\
mkdir -p {root} && cd {root} || exit 1
{{ i=0
  until flock -n 9; do
    p=$(cat push.pid 2>/dev/null); case " {own} " in *" $p "*) kill -9 $p 2>/dev/null ;; esac
    i=$((i+1)); [ $i -lt {tries} ] || {{ echo $p; exit {held}; }}
    sleep 0.1
  done
  echo $$ > push.pid
  echo has $$
  while read -r line; do :; done
}} 9>push.lock
"""


class Claim:
    """Of one command on one phone; `hold` may be entered again after a lost link."""

    def __init__(self, phone: Phone, patience: float = PATIENCE) -> None:
        self._phone = phone
        self._tries = max(1, round(patience * 10))
        self._own: list[str] = []

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Have the right meanwhile. Raises Busy where another command has it."""
        root, own = quote(self._phone.root), " ".join(self._own) or "-"
        stream = self._phone.start(_TAKE.format(root=root, own=own, tries=self._tries, held=_HELD))
        try:
            self._own.append(self._await(stream))
            yield
            stream.end_input()  # and see it go, so that whoever comes next need not wait
            with contextlib.suppress(ConnectionLost):
                stream.finish(1, "ending a lock")
        finally:
            stream.close()

    def _await(self, stream: ShellStream) -> str:
        """The number of the shell that has the lock for us."""
        stream.settimeout(TIMEOUT)
        said = b""
        try:
            while not said.endswith(b"\n") and (data := stream.read(64)):
                said += data
        except TimeoutError as error:
            raise ConnectionLost(f"{self._phone.name} does not answer", LOST_HINT) from error
        if taken := re.fullmatch(r"has (\d+)\n", said.decode("ascii", "replace")):
            return taken[1]
        stream.end_input()
        done = stream.finish(TIMEOUT, "waiting for another command")
        if done.code == _HELD:
            raise self._busy(said.decode("ascii", "replace").strip())
        done.check(f"making {self._phone.root}")
        raise CommandFailed(f"{self._phone.name} cannot lock {self._phone.root}", "try another --root")

    def _busy(self, holder: str) -> Busy:
        return Busy(
            f"another command is changing files on {self._phone.name}: process {holder or 'unknown'}",
            "wait for it to end, then run this one again",
        )
