"""Folders of files on a phone, named by their content: what is there, what is missing, what may go.

A folder is whole once its `.complete-PART` says what its files looked like right after their sha256 was
checked; a file that changed since then has another size, time, inode or mode, and is checked again.
`.sha256-PART` lets another folder take files it has in common instead of receiving them once more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hexgraft.host.adb.errors import CommandFailed
from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.shell import quote

KINDS = ("bundles", "runners")
CACHES, RUNS = "caches", "runs"
"""What runs leave: the cache of one whose link was lost, and the records of the last ones."""

HASH_TIMEOUT = 900.0
"""Seconds for hashing what may be several gigabytes."""

_DIGEST = 16
_BOOKS = ("run.pid", "run.lock", "alive.lock", "push.pid", "push.lock")


@dataclass(frozen=True, slots=True)
class Piece:
    """A file to be on the phone: where it is here, its size and sha256, and whether it is to be run."""

    source: Path
    size: int
    sha256: str
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Folder:
    """One of our folders: `kind` is one of KINDS, `digest` the sha256 that names it, `pieces` its files.

    `part` names a choice of its files, each of which is whole or not by itself.
    """

    kind: str
    digest: str
    pieces: Mapping[str, Piece]
    part: str = "all"

    @property
    def name(self) -> str:
        """Below the root."""
        return f"{self.kind}/{self.digest[:_DIGEST]}"

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces.values())


@dataclass(frozen=True, slots=True)
class Present:
    """A folder found on the phone, and its size in bytes. `name` is empty for what runs leave."""

    kind: str
    name: str
    size: int
    whole: bool

    @property
    def place(self) -> str:
        """Below the root."""
        return f"{self.kind}/{self.name}" if self.name else self.kind


class Store:
    """Our folders on one phone."""

    def __init__(self, phone: Phone) -> None:
        self.phone = phone

    def path(self, folder: Folder, name: str = "") -> str:
        return f"{self.phone.root}/{folder.name}" + (f"/{name}" if name else "")

    def is_whole(self, folder: Folder) -> bool:
        """Whether everything is there as it was when it was checked. Costs one short command."""
        done = self.phone.run(
            f"cd {quote(self.path(folder))} 2>/dev/null && [ -s .complete-{folder.part} ] && "
            f'[ "$({_look(folder.pieces)})" = "$(cat .complete-{folder.part})" ] && echo whole',
            "looking for files",
        )
        return done.stdout.strip() == "whole"

    def sizes(self, folder: Folder) -> dict[str, int]:
        """Sizes of what is there, unfinished files (`NAME.part`) included."""
        done = self.phone.run(
            f"cd {quote(self.path(folder))} 2>/dev/null || exit 0\n"
            "find . -type f -exec stat -c '%s %n' {} +",
            "looking for files",
        )
        found = re.findall(r"^(\d+) \./(.+)$", done.stdout, re.M)
        return {name: int(size) for size, name in found}

    def hashes(self, folder: Folder, names: list[str]) -> dict[str, str]:
        """sha256 of files in a folder, computed on the phone; what is not there is not in the result."""
        if not names:
            return {}
        words = " ".join(quote(name) for name in names)
        done = self.phone.run(
            f"cd {quote(self.path(folder))} 2>/dev/null && sha256sum -- {words} 2>/dev/null; true",
            "checking files",
            HASH_TIMEOUT,
        )
        return {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (.+)$", done.stdout, re.M)}

    def borrow(self, folder: Folder, names: list[str]) -> list[str]:
        """Take files another whole folder has, as links where the file system allows; returns which."""
        lines = [f"cd {quote(self.phone.root)} || exit 0"]
        for name in names:
            piece = folder.pieces[name]
            target = quote(f"{folder.name}/{name}")
            lines.append(
                f"l=$(grep -h -l ^{piece.sha256} */*/.sha256-* 2>/dev/null | head -n 1); "
                f'if [ -n "$l" ]; then n=$(grep ^{piece.sha256} "$l" | head -n 1); n=${{n#*  }}; '
                f'f="${{l%/.sha256-*}}/$n"; [ "$f" -ef {target} ] || '
                f'{{ ln -f "$f" {target} 2>/dev/null || cp -f "$f" {target}; }} && echo {quote(name)}; fi'
            )
        done = self.phone.run("\n".join([*lines, "true"]), "copying files the phone has", HASH_TIMEOUT)
        return [name for name in done.stdout.splitlines() if name in names]

    def make(self, folder: Folder) -> None:
        """The folder and those its files lie in, no longer whole if it was."""
        places = sorted(
            {self.path(folder), *(self.path(folder, n).rpartition("/")[0] for n in folder.pieces)}
        )
        words = " ".join(quote(place) for place in places)
        self.phone.run(
            f"umask 022; mkdir -p {words} && rm -f {quote(self.path(folder, '.complete-' + folder.part))}",
            "making folders",
        ).check(f"making {self.path(folder)}")

    def complete(self, folder: Folder) -> None:
        """Note that every file was checked: permissions first, they are part of what may go wrong."""
        runnable = [quote(name) for name, piece in folder.pieces.items() if piece.executable]
        enter = f"cd {quote(self.path(folder))} && "
        if runnable:
            tests = " && ".join(f"[ -x {name} ]" for name in runnable)
            if self.phone.run(f"{enter}chmod 755 {' '.join(runnable)}; {tests}", "setting permissions").code:
                raise CommandFailed(
                    f"files in {self.phone.root} cannot be made executable on this phone",
                    "choose another folder with --root, on a file system that allows it",
                )
        hashes = "".join(f"{piece.sha256}  {name}\n" for name, piece in folder.pieces.items())
        self.phone.run(
            f"{enter}printf %s {quote(hashes)} > .sha256-{folder.part} "
            f"&& {_look(folder.pieces)} > .complete-{folder.part}",
            "finishing",
        ).check(f"finishing {self.path(folder)}")

    def present(self) -> list[Present]:
        """Every folder of ours on the phone."""
        done = self.phone.run(
            f"cd {quote(self.phone.root)} 2>/dev/null || exit 0\n"
            f"for d in bundles/* runners/* {CACHES} {RUNS}; do [ -d $d ] || continue\n"
            "w=part; for c in $d/.complete-*; do [ -f $c ] && w=whole; done\n"
            'set -- $(du -sk "$d"); echo "$1 $w $d"; done; true',
            "listing folders",
        )
        found = re.findall(r"^(\d+) (whole|part) (\w+)(?:/(\w+))?$", done.stdout, re.M)
        return [
            Present(kind, name, int(kb) * 1024, state == "whole" or not name)
            for kb, state, kind, name in found
        ]

    def remove(self, present: list[Present]) -> None:
        """Delete folders; nothing but what `present` lists, and the root itself once it is empty."""
        words = " ".join(quote(entry.place) for entry in present)
        if words:
            self.phone.run(f"cd {quote(self.phone.root)} && rm -rf {words}", "deleting", 300).check(
                "deleting"
            )

    def remove_root(self) -> None:
        """Delete our bookkeeping and the empty root."""
        root = quote(self.phone.root)
        self.phone.run(
            f"cd {root} 2>/dev/null || exit 0; rm -f {' '.join(_BOOKS)}; "
            f"rmdir bundles runners 2>/dev/null; cd / && rmdir {root} 2>/dev/null; true",
            "deleting",
        )


def _look(pieces: Mapping[str, Piece]) -> str:
    """The command that prints what the files look like."""
    return "TZ=UTC0 stat -c '%s %y %i %a %n' " + " ".join(quote(name) for name in pieces)
