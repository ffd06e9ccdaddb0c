"""What runs on a phone: the runner for its kind of system, and the libraries it loads, as one folder."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hexgraft.host.adb.errors import Unfit
from hexgraft.host.adb.store import Folder, Piece
from hexgraft.host.runner.local import RUNNER, find_ort, find_qnn, find_runner, source_folder
from hexgraft.host.runner.sdk import TARGETS, sdk_folder
from hexgraft.models.errors import UsageError

ORT = "libonnxruntime.so"
PLUGIN = "libonnxruntime_providers_qnn.so"
_STUBS = re.compile(r"libQnnHtpV(\d+)(?:Stub|Skel)\.so")
_BUNDLED = re.compile(r".+-[0-9a-f]{8}\.so[.\d]*")
_NEEDED = ("libQnnHtp.so", "libQnnSystem.so")


@dataclass(frozen=True, slots=True)
class Release:
    """A runner and its libraries. `qnn` tells whether those for the NPU are in it."""

    target: str
    folder: Folder
    qnn: bool

    @property
    def libraries(self) -> dict[str, Path]:
        """The vendor's libraries in it, where they lie here."""
        return {name: p.source for name, p in self.folder.pieces.items() if name.startswith("libQnn")}


def find_release(target: str, *, qnn: bool, arch: int | None = None) -> Release:
    """The release for a phone's kind of system. With `qnn` the vendor's libraries are in it, of all Hexagon
    versions or only of `arch`. Raises UsageError or Unfit with what to build or gather."""
    if target not in TARGETS:
        raise Unfit(f"there is no runner for {target}", f"runners can be built for: {', '.join(TARGETS)}")
    files = {RUNNER: (_runner(target), True), ORT: (_ort(target), False)}
    if qnn:
        files |= {path.name: (path, False) for path in _qnn(target, arch)}
    pieces = {name: _piece(path, executable) for name, (path, executable) in sorted(files.items())}
    digest = hashlib.sha256(
        "".join(f"{p.sha256}  {name}\n" for name, p in pieces.items()).encode()
    ).hexdigest()
    return Release(target, Folder("runners", digest, pieces), qnn)


def _here(target: str) -> bool:
    return target == f"linux-{platform.machine()}"


def _runner(target: str) -> Path:
    if _here(target):
        return find_runner()
    binary = source_folder().parent / "build" / "device" / target / RUNNER
    if not binary.is_file():
        raise UsageError(
            f"there is no runner for {target} at {binary}",
            f"build it: hexgraft device build --preset {target}",
        )
    return binary


def _ort(target: str) -> Path:
    library = sdk_folder(target) / "lib" / ORT
    if library.is_file():
        return library
    if _here(target):
        return find_ort()
    raise UsageError(
        f"there is no ONNX Runtime for {target} at {library}",
        f"gather it: hexgraft device sdk --target {target}",
    )


def _qnn(target: str, arch: int | None) -> Iterator[Path]:
    """The provider plugin and the QNN libraries beside it."""
    folder = sdk_folder(target) / "lib"
    if not (folder / PLUGIN).is_file():
        plugin = find_qnn() if _here(target) else None
        if plugin is None:
            raise UsageError(
                f"there are no QNN libraries for {target} at {folder}",
                f"gather them: hexgraft device sdk --target {target} --aar ... --qairt SDK",
            )
        folder = plugin.parent
    missing = [name for name in (PLUGIN, *_NEEDED) if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder} lacks {', '.join(missing)}",
            f"gather all of one release: hexgraft device sdk --target {target}",
        )
    yield from (folder / name for name in (PLUGIN, *_NEEDED))
    # A Python wheel keeps libraries of its own, the C++ runtime among them, in a folder beside the package;
    # `hexgraft device sdk` puts them to the others. A hash in their names tells them apart.
    yield from sorted(folder.parent.glob(f"{folder.name}.libs/*.so*"))
    yield from sorted(file for file in folder.glob("*.so*") if _BUNDLED.fullmatch(file.name))
    found = [(file, _STUBS.fullmatch(file.name)) for file in sorted(folder.glob("libQnnHtpV*.so"))]
    pair = [file for file, match in found if match and arch in (None, int(match[1]))]
    if arch is not None and len(pair) < 2:
        raise UsageError(
            f"{folder} lacks libQnnHtpV{arch}Stub.so or libQnnHtpV{arch}Skel.so",
            f"gather all of one release: hexgraft device sdk --target {target}",
        )
    yield from pair


def _piece(path: Path, executable: bool) -> Piece:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Piece(path, path.stat().st_size, digest, executable)
