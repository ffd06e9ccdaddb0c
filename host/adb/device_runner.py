"""The runner on a phone: started over one shell stream, one at a time, and gone when the host is.

The shell takes a lock the runner inherits, writes its process number, and becomes the runner by `exec`, since
adbd's hang-up reaches the shell's own process only. A watcher in a session of its own waits for a second lock
to be free and then restores the phone's settings, whether or not a host is left to do so.
"""

from __future__ import annotations

import contextlib
import copy
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from hexgraft.host.adb.errors import Busy, CommandFailed, ConnectionLost, DeviceError
from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.release import ORT, PLUGIN, Release
from hexgraft.host.adb.shell import LOST_HINT, ShellStream, quote
from hexgraft.host.adb.store import CACHES, RUNS
from hexgraft.host.adb.vendor_errors import diagnose
from hexgraft.host.runner.connection import RunnerConnection
from hexgraft.host.runner.local import RUNNER
from hexgraft.host.runner.wire import RunnerLost
from hexgraft.models.errors import HexgraftError

SILENCE = 600.0
"""Seconds without a byte after which a link counts as lost; loading a large model takes minutes."""

STAY_AWAKE = "stay_on_while_plugged_in"
_POWER_SOURCES = 7
_HELD = 75
_NO_FOLDER = 76
_UNFINISHED = 77
_RESTORING = 100
"""Tenths of a second that the watcher of an earlier run may take to restore the phone's settings."""
_KILLED = 137
_KEPT_RECORDS = 8
"""Records of runs on a phone, the present one counted. A runner ends its own at 8 MB."""
_LINES = 40
# FastRPC separates with semicolons. Ours comes before the vendor's, whose skel is of another release.
_VENDOR_DSP = "/vendor/lib/rfsa/adsp;/vendor/dsp/cdsp;/vendor/dsp;/dsp"

_START = """\
cd {root} || exit {no_folder}
{{ flock -n 9 || {{ cat run.pid >&2; exit {held}; }}
  i=0; until flock -n 8; do i=$((i+1)); [ $i -lt {patience} ] || exit {unfinished}; sleep 0.1; done
  echo $$ > run.pid
  mkdir -p {caches} {runs}
  ls -t {runs}/*.jsonl 2>/dev/null | tail -n +{kept} | while read -r f; do rm -f "$f"; done
{awake}  LD_LIBRARY_PATH={folder} ADSP_LIBRARY_PATH={dsp} exec {command} \\
    --caches {caches} --record {runs}/$(date +%Y%m%d-%H%M%S)-$$.jsonl
}} 9>run.lock 8>alive.lock
"""
# What the setting was is noted once: a second run must not take the first one's value for the user's. One
# that cannot be asked for, as while Android starts, stays as it is. Only the runner may write to our stream.
_AWAKE = """\
  [ -f stay-awake.saved ] || {{ v=$(settings get global {name}) && [ -n "$v" ] &&
    echo "$v" > stay-awake.new && mv stay-awake.new stay-awake.saved; }}
  [ -f stay-awake.saved ] && settings put global {name} {value} >&2
  setsid sh -c {watch} </dev/null >/dev/null 2>&1 8>&- 9>&- &
"""
_WATCH = """\
trap '' HUP
{ flock 8
  v=$(cat stay-awake.saved) || exit 0
  case "$v" in
    ''|null) settings delete global NAME ;;
    *) settings put global NAME "$v" ;;
  esac && rm -f stay-awake.saved
} 8>alive.lock
""".replace("NAME", STAY_AWAKE)
# The kernel keeps 15 characters of a program's name.
_IS_OURS = f'[ "$(cat /proc/$p/comm 2>/dev/null)" = {RUNNER[:15]} ]'


class DeviceRunner:
    """A running runner and its connection. `note` is told each line the runner and its libraries log."""

    def __init__(
        self,
        phone: Phone,
        release: Release,
        *,
        stay_awake: bool = True,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.phone = phone
        self._note = note
        self._rest = b""
        self._lines: deque[str] = deque(maxlen=_LINES)
        self.stream: ShellStream = phone.start(start_command(phone.root, release, stay_awake), self._hear)
        self.stream.settimeout(SILENCE)
        try:
            self.connection = RunnerConnection(self, self, self.explain)
        except RunnerLost as error:
            self.stream.close()
            raise self._why_not_started(error) from error
        except BaseException:
            with _deaf():
                self.stream.close()
                self._make_sure()
            raise

    def read(self, count: int, /) -> bytes:
        """Bytes of the runner; raises ConnectionLost where the link went and not the runner."""
        try:
            data = self.stream.read(count)
        except TimeoutError as error:
            raise ConnectionLost(
                f"{self.phone.name} has not answered for {SILENCE:.0f} s", LOST_HINT
            ) from error
        if not data and self.stream.lost:
            raise self._lost()
        return data

    def write(self, data: bytes, /) -> int:
        try:
            return self.stream.write(data)
        except BrokenPipeError:
            if self.stream.lost:
                raise self._lost() from None
            raise

    def flush(self) -> None:
        """Nothing is held back."""

    def explain(self) -> str:
        """How the runner ended and what the last thing it said means."""
        code = self.stream.code
        if code is None:
            return ""
        said = "\n".join(self._lines)
        known = diagnose(said)
        if known is not None:
            return f"{known.cause}; {known.hint}"
        if code == _KILLED:
            return "killed, likely out of memory; try a smaller context"
        how = f"killed by signal {code - 128}" if code > 128 else f"exit status {code}"
        last = next((line for line in reversed(self._lines) if line.strip()), "")
        return f"{how}; it said: {last}" if last else how

    def decoded(self, error: HexgraftError) -> HexgraftError:
        """The same error with the cause, where what the vendor's libraries said gives it away."""
        self.stream.poll()
        known = diagnose("\n".join((*self._lines, error.message)))
        if known is None or known.cause in error.message:
            return error
        told = copy.copy(error)
        told.message, told.hint = f"{error.message}: {known.cause}", known.hint
        told.args = (told.message,)
        return told

    def close(self, patience: float = 1.0) -> None:
        """End the runner: ask, hang up, kill by its number if it still runs. A lost link is no error here.

        Takes three times `patience` at most, during which Ctrl-C is not heard: it would leave the runner.
        """
        with _deaf():
            self._end(patience)

    def _end(self, patience: float) -> None:
        self.stream.settimeout(patience)
        try:
            with contextlib.suppress(DeviceError):
                self.connection.close()
            self.stream.end_input()
            with contextlib.suppress(DeviceError):
                self.stream.finish(patience, "ending the runner")
        finally:
            self.stream.close()
        self._make_sure()

    def _make_sure(self) -> None:
        """After the hang-up: a runner that did not heed it is killed by its number."""
        if self.stream.code is None and not self.stream.lost:
            with contextlib.suppress(DeviceError):
                end_runner(self.phone, patience=0.5)

    def _hear(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip()
            self._lines.append(text)
            self._note(text)

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.phone.name} was lost", LOST_HINT)

    def _why_not_started(self, error: RunnerLost) -> DeviceError:
        """Why there is no greeting: somebody else runs, the file is not there, or it cannot be run."""
        code, said = (
            self.stream.code,
            (self._rest.decode("utf-8", "replace") or " ".join(self._lines)).strip(),
        )
        if code == _HELD:
            holder = said if said.isdigit() else "unknown"
            return Busy(
                f"another run holds {self.phone.name}: its runner is process {holder}",
                f"wait for it, or end it: adb -s {quote(self.phone.serial)} shell kill {holder}",
            )
        if code == _UNFINISHED:
            return Busy(
                f"{self.phone.name} is still restoring its settings after the last run",
                "wait a moment and run again; rebooting the phone helps: adb reboot",
            )
        if code in (126, 127, _NO_FOLDER):
            return CommandFailed(
                f"the runner on {self.phone.name} cannot be started: {said or 'no such file'}",
                "push it again: hexgraft push",
            )
        return CommandFailed(f"the runner on {self.phone.name} did not start: {error.message}", error.hint)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C meanwhile, where this thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start_command(root: str, release: Release, stay_awake: bool) -> str:
    """The shell command that becomes the runner. Its working folder is the root."""
    folder = f"{root}/{release.folder.name}"
    words = [f"{folder}/{RUNNER}", "--ort", f"{folder}/{ORT}"]
    if release.qnn:
        words += ["--qnn", f"{folder}/{PLUGIN}", "--htp-backend", f"{folder}/libQnnHtp.so"]
    awake = ""
    if stay_awake:
        awake = _AWAKE.format(name=STAY_AWAKE, value=_POWER_SOURCES, watch=quote(_WATCH))
    return _START.format(
        root=quote(root),
        no_folder=_NO_FOLDER,
        patience=_RESTORING,
        unfinished=_UNFINISHED,
        held=_HELD,
        awake=awake,
        folder=quote(folder),
        dsp=quote(f"{folder};{_VENDOR_DSP}"),
        command=" ".join(quote(word) for word in words),
        caches=CACHES,
        runs=RUNS,
        kept=_KEPT_RECORDS,
    )


def running(phone: Phone) -> int | None:
    """The process number of the runner on a phone, if one runs."""
    done = phone.run(
        f"p=$(cat {quote(phone.root)}/run.pid 2>/dev/null) && {_IS_OURS} && echo $p; true",
        "looking for a runner",
    )
    found = re.fullmatch(r"\d+", done.stdout.strip())
    return int(found[0]) if found else None


def restore_settings(phone: Phone) -> None:
    """Put the phone's settings back where a run could not, as when the phone went down. CommandFailed if it
    does not take them. No runner may be running."""
    command = f"cd {quote(phone.root)} 2>/dev/null && [ -f stay-awake.saved ] || exit 0\n{_WATCH}"
    phone.run(command, "restoring its settings").check("restoring its settings")


def end_runner(phone: Phone, *, patience: float) -> None:
    """Wait for the phone's runner to end by itself, then kill it by the number it noted, after checking that
    the number still is a runner's."""
    deadline = time.monotonic() + patience
    while running(phone) is not None:
        if time.monotonic() >= deadline:
            phone.run(
                f"p=$(cat {quote(phone.root)}/run.pid) && {_IS_OURS} && kill -9 $p; true", "ending the runner"
            )
            return
        time.sleep(0.1)
