"""Fetches what runs left on a phone: only what is missing, resumed after a lost link, whole or not at all.

A record may grow while it is fetched: as many bytes count as it had when it was looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hexgraft.host.adb.errors import CommandFailed, ConnectionLost, TransferFailed
from hexgraft.host.adb.needs import check_commands
from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.push import STALL
from hexgraft.host.adb.shell import LOST_HINT, quote
from hexgraft.host.adb.store import HASH_TIMEOUT, RUNS
from hexgraft.models.errors import HexgraftError, UsageError

_BLOCK = 256 << 10

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RunFile:
    """The record of one run on a phone; `changed` is when it was written last, in seconds since 1970."""

    name: str
    size: int
    changed: int


def run_files(phone: Phone) -> list[RunFile]:
    """Records on a phone, the latest first."""
    done = phone.run(
        f"cd {quote(phone.root)}/{RUNS} 2>/dev/null || exit 0\n"
        "for f in *.jsonl; do [ -f $f ] && stat -c '%Y %s %n' $f; done; true",
        "looking for records",
    )
    found = []
    for line in done.stdout.splitlines():
        changed, size, name = line.split(" ", 2)
        found.append(RunFile(name, int(size), int(changed)))
    return sorted(found, key=lambda file: (file.changed, file.name), reverse=True)


class Puller:
    """Fetches into `folder`. `retries` lost links in a row are survived, waiting `patience` seconds for the
    phone each time; `progress` is told (file, bytes here, size)."""

    def __init__(
        self,
        phone: Phone,
        folder: Path,
        progress: Progress = lambda what, done, total: None,
        *,
        retries: int = 3,
        patience: float = 30.0,
    ) -> None:
        self.phone = phone
        self.folder = folder
        self._progress = progress
        self._retries = retries
        self._patience = patience
        self.received = 0
        """Bytes that came over the link."""

    def pull(self, file: RunFile) -> Path:
        """The file in the folder. Raises NoDevice for a phone that lacks a command, TransferFailed,
        ConnectionLost once the retries are used up, and UsageError where something else has its name."""
        target, part = self.folder / file.name, self.folder / (file.name + ".part")
        left = self._retries
        while True:
            try:
                check_commands(self.phone)
                digest = self._digest(file)
                if target.is_file() and _digest(target) == digest:
                    return target
                for attempt in (1, 2):
                    self._receive(file, part)
                    if _digest(part) == digest:
                        return _settle(part, target)
                    part.unlink()
                    if attempt == 2:
                        raise TransferFailed(
                            f"{file.name} arrived altered twice", "try another cable or port"
                        )
            except ConnectionLost:
                left -= 1
                if left <= 0:
                    raise
                self.phone.wait(self._patience)
            except OSError as error:
                raise HexgraftError(
                    f"cannot write {part}: {error.strerror}", "choose another folder with --output"
                ) from error

    def _place(self, file: RunFile) -> str:
        return quote(f"{self.phone.root}/{RUNS}/{file.name}")

    def _digest(self, file: RunFile) -> str:
        done = self.phone.run(
            f"[ -f {self._place(file)} ] && head -c {file.size} {self._place(file)} | sha256sum",
            "checking files",
            HASH_TIMEOUT,
        )
        if done.code:
            raise CommandFailed(f"{file.name} is no longer on {self.phone.name}", "run the command again")
        return done.stdout.partition(" ")[0]

    def _receive(self, file: RunFile, part: Path) -> None:
        """Append to `part` what is missing of the file. What is there of an earlier try is checked with the
        rest."""
        at = part.stat().st_size if part.is_file() else 0
        if at > file.size:
            part.unlink()
            at = 0
        self._progress(file.name, at, file.size)
        stream = self.phone.start(f"head -c {file.size} {self._place(file)} | tail -c +{at + 1}")
        stream.settimeout(STALL)
        stream.end_input()
        try:
            with part.open("ab") as out:
                while data := stream.read(_BLOCK):
                    out.write(data)
                    at += len(data)
                    self.received += len(data)
                    self._progress(file.name, at, file.size)
        except TimeoutError as error:
            raise ConnectionLost(f"{self.phone.name} sends no more data", LOST_HINT) from error
        finally:
            stream.close()
        if stream.lost:
            raise ConnectionLost(f"the connection to {self.phone.name} was lost", LOST_HINT)


def _settle(part: Path, target: Path) -> Path:
    """Give a whole file its name. A record that has grown replaces its beginning, and nothing else."""
    if target.exists():
        before = target.read_bytes() if target.is_file() else None
        if before is None or part.read_bytes()[: len(before)] != before:
            part.unlink()
            raise UsageError(f"{target} exists already and is no part of it", "choose another --output")
    part.replace(target)
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
