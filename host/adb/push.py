"""Puts folders of files on a phone: only what is missing, resumed after a lost link, checked on arrival.

Files travel as standard input of `tee`, appended to `NAME.part` and hashed on the way, not through adb's file
service: adbd unlinks what that service received once the link breaks, so nothing would be left to go on from.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from hexgraft.host.adb.claim import Claim
from hexgraft.host.adb.errors import ConnectionLost, NoSpace, TransferFailed
from hexgraft.host.adb.facts import free_space
from hexgraft.host.adb.needs import check_commands
from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.shell import LOST_HINT, Completed, ShellStream, quote
from hexgraft.host.adb.store import HASH_TIMEOUT, Folder, Piece, Store
from hexgraft.models.errors import BundleError

CHUNK = 1 << 20
"""Bytes of a write; adb's own messages hold no more."""

STALL = 60.0
"""Seconds without progress after which a link counts as lost."""

_RESERVE = 1.1
# A tee that cannot write may go on passing data: its failure must change the hash.
_BEGIN = """\
trap '' HUP
umask 022
{{ sh -c 'echo $$ > "$0.pid"; exec tee -a "$0"' {path} || echo failed; }} | sha256sum
"""
_CONTINUE = """\
trap '' HUP
umask 022
echo $$ > {path}.pid
exec tee -a {path} > /dev/null
"""
# The tee of a broken connection ignores the hang-up, to write all it was given. It has the end of its input
# before it; one that does not see it is ended, or it would append when it must not.
_FINISH = """\
p=$(cat {path}.pid 2>/dev/null) || exit 0
i=0
while [ $i -lt 30 ]; do
  [ "$(cat /proc/$p/comm 2>/dev/null)" = tee ] || break
  i=$((i+1))
  [ $i = 30 ] && kill -9 $p
  sleep 0.1
done
rm -f {path}.pid
"""
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Pushed:
    """What a push moved: files and bytes sent, bytes that were there, seconds, links lost meanwhile."""

    files: int = 0
    sent: int = 0
    kept: int = 0
    seconds: float = 0.0
    lost: int = 0


class Pusher:
    """Pushes to one phone. `retries` lost links in a row without progress are survived, waiting `patience`
    seconds for the phone each time; `progress` is told (file, bytes there, size)."""

    def __init__(
        self,
        phone: Phone,
        progress: Progress = lambda what, done, total: None,
        *,
        retries: int = 3,
        patience: float = 30.0,
    ) -> None:
        self.phone = phone
        self.store = Store(phone)
        self._progress = progress
        self._retries = retries
        self._patience = patience
        self._claim = Claim(phone)
        self._arrived = 0
        """Bytes of the present folder that were found on the phone: what was sent may not have come."""
        self.pushed = Pushed()

    def push(self, folder: Folder) -> Pushed:
        """Make `folder` whole on the phone. Raises NoDevice for one that lacks a command, Busy where another
        command is at it, NoSpace before anything moves, TransferFailed, ConnectionLost once the retries are
        used up."""
        start = time.monotonic()
        left, mark, self._arrived = self._retries, 0, 0
        while True:
            try:
                self._push(folder)
                break
            except ConnectionLost:
                self.pushed.lost += 1
                left = self._retries if self._arrived > mark else left - 1
                mark = self._arrived
                if left <= 0:
                    raise
                self.phone.wait(self._patience)
        self.pushed.seconds += time.monotonic() - start
        return self.pushed

    def _push(self, folder: Folder) -> None:
        if self.store.is_whole(folder):
            self.pushed.kept = folder.size
            return
        check_commands(self.phone)
        with self._claim.hold():
            if not self.store.is_whole(folder):  # another command may just have made it so
                self._fill(folder)

    def _fill(self, folder: Folder) -> None:
        missing = self._missing(folder)
        self._check_space(folder, missing)
        self.store.make(folder)
        for name in self.store.borrow(folder, missing):
            if self._right(folder, name):
                missing.remove(name)
        there = folder.size - sum(folder.pieces[name].size for name in missing)
        for name in missing:
            start = self._resume_at(folder, name)
            self._arrived = max(self._arrived, there + start)
            self._push_file(folder, name, start)
            there += folder.pieces[name].size
        self._arrived = there
        self.store.complete(folder)

    def _missing(self, folder: Folder) -> list[str]:
        """Names of files that are not there with the right content."""
        sizes = self.store.sizes(folder)
        likely = [name for name, piece in folder.pieces.items() if sizes.get(name) == piece.size]
        hashes = self.store.hashes(folder, likely)
        return [name for name, piece in folder.pieces.items() if hashes.get(name) != piece.sha256]

    def _check_space(self, folder: Folder, missing: list[str]) -> None:
        sizes = self.store.sizes(folder)
        need = sum(max(0, folder.pieces[n].size - sizes.get(n + ".part", 0)) for n in missing)
        free = free_space(self.phone)
        if free is not None and need * _RESERVE > free:
            raise self._no_space(folder, need, free)

    def _no_space(self, folder: Folder, need: int, free: int) -> NoSpace:
        others = [p for p in self.store.present() if p.place != folder.name]
        freed = sum(entry.size for entry in others)
        hint = f"`hexgraft clean` would free {megabytes(freed)}" if freed else "delete something on the phone"
        return NoSpace(
            f"{self.phone.name} has {megabytes(free)} free in {self.phone.root}, "
            f"{megabytes(need)} and a tenth more are needed",
            hint,
        )

    def _right(self, folder: Folder, name: str) -> bool:
        return self.store.hashes(folder, [name]).get(name) == folder.pieces[name].sha256

    def _push_file(self, folder: Folder, name: str, start: int) -> None:
        """Push one file from `start` on under its `.part` name, check it on the phone, give it its name.
        BundleError where it was altered here."""
        piece, part = folder.pieces[name], name + ".part"
        for attempt in (1, 2):
            if self._send(folder, name, start) == piece.sha256:
                break
            self._remove(folder, part)
            if _prefix_hash(piece, piece.size) != piece.sha256:  # no cable is to blame
                raise BundleError(
                    f"{piece.source} is not the file it was made as: its sha256 differs", "export it again"
                )
            start = 0
            if attempt == 2:
                raise TransferFailed(
                    f"{name} arrived altered on {self.phone.name} twice", "try another cable or port"
                )
        paths = [quote(self.store.path(folder, each)) for each in (part, name)]
        self.phone.run(
            f'[ "$(stat -c %s {paths[0]})" = {piece.size} ] && mv -f {paths[0]} {paths[1]}', "renaming"
        ).check(f"renaming {part}")
        self.pushed.files += 1

    def _resume_at(self, folder: Folder, name: str) -> int:
        """How much of a file is there from an earlier try and equals ours; anything else is removed."""
        piece, part = folder.pieces[name], name + ".part"
        path = quote(self.store.path(folder, part))
        self.phone.run(_FINISH.format(path=path), "looking for unfinished files")
        there = self.store.sizes(folder).get(part, 0)
        if not there:
            return 0
        if there <= piece.size and self.store.hashes(folder, [part]).get(part) == _prefix_hash(piece, there):
            return there
        self._remove(folder, part)
        return 0

    def _send(self, folder: Folder, name: str, start: int) -> str:
        """Append bytes `start`.. of a file to its `.part`; the sha256 of all that is there then."""
        piece = folder.pieces[name]
        path = quote(self.store.path(folder, name + ".part"))
        stream = self.phone.start((_CONTINUE if start else _BEGIN).format(path=path))
        stream.settimeout(STALL)
        try:
            with piece.source.open("rb") as file:
                file.seek(start)
                at = start
                self._progress(name, at, piece.size)
                while at < piece.size and (data := file.read(min(CHUNK, piece.size - at))):
                    if stream.poll():
                        break
                    stream.write(data)
                    at += len(data)
                    self.pushed.sent += len(data)
                    self._progress(name, at, piece.size)
        except TimeoutError as error:
            stream.close()
            raise ConnectionLost(f"{self.phone.name} takes no more data", LOST_HINT) from error
        except BrokenPipeError:
            pass  # how it ended is told below
        done = self._end(stream, name)
        if done.code != 0 or done.stderr:
            self._explain(folder, name, done)
        if at < piece.size:
            raise BundleError(f"{piece.source} became shorter while it was pushed", "export it again")
        self.phone.run(f"rm -f {path}.pid")
        if start:  # what an earlier try left was not hashed on its way
            return self.store.hashes(folder, [name + ".part"]).get(name + ".part", "")
        return done.stdout.partition(" ")[0]

    def _end(self, stream: ShellStream, name: str) -> Completed:
        stream.end_input()
        return stream.finish(HASH_TIMEOUT if not stream.ended else STALL, f"pushing {name}")

    def _explain(self, folder: Folder, name: str, done: Completed) -> None:
        """Raise what a failure meant, after removing the file that cannot be finished."""
        said = (done.stderr.strip().splitlines() or [f"exit {done.code}"])[-1]
        if "No space left" in done.stderr:
            self._remove(folder, name + ".part")
            raise self._no_space(folder, folder.pieces[name].size, free_space(self.phone) or 0)
        if done.code > 128:  # killed, as by a reboot: what arrived is good
            raise ConnectionLost(f"{self.phone.name} stopped receiving {name}", LOST_HINT)
        raise TransferFailed(
            f"{self.phone.name} refused {name}: {said}", "see `hexgraft doctor --backend device`"
        )

    def _remove(self, folder: Folder, name: str) -> None:
        self.phone.run(f"rm -f {quote(self.store.path(folder, name))}").check(f"removing {name}")


def _prefix_hash(piece: Piece, count: int) -> str:
    digest = hashlib.sha256()
    with piece.source.open("rb") as file:
        while count and (data := file.read(min(8 << 20, count))):
            digest.update(data)
            count -= len(data)
    return digest.hexdigest()


def megabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
