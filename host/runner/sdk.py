"""Gathers what a runner is built against and pushed with: ONNX Runtime's headers and library, QNN libraries.

Nothing of it is hexgraft's: every file is recorded with its sha256 and source, every licence found is kept.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import msgspec

from hexgraft.models.errors import HexgraftError, UsageError
from hexgraft.models.user_folders import cache_folder

TARGETS = ("linux-x86_64", "linux-aarch64", "android-arm64")
NPM_PACKAGE = "com.github.asus4.onnxruntime@0.4.9"
"""The registry package whose AAR holds ONNX Runtime's headers and its Android library (MIT)."""

_NPM_AAR = PurePosixPath("package/Plugins/Android/onnxruntime.aar")
_SUMMARY = "sdk.json"
_AAR_LIBRARY = {"android-arm64": "jni/arm64-v8a/libonnxruntime.so"}
_QAIRT_FOLDERS = {"linux-x86_64": "x86_64-linux-clang", "linux-aarch64": "aarch64-oe-linux-gcc11.2"}
_QAIRT_FOLDERS["android-arm64"] = "aarch64-android"
_QNN_LIBRARY = re.compile(
    r"lib(onnxruntime_providers_qnn|QnnSystem|QnnHtp|QnnHtpPrepare|HtpPrepare|QnnHtpV\d+(Stub|Skel))\.so"
)
_WHOLE = "give a whole AAR or wheel"
_LICENCE = re.compile(r"(.*_)?(LICENSE|NOTICE|ThirdPartyNotices)(\.txt|\.pdf|\.md)?", re.IGNORECASE)


class SdkError(HexgraftError):
    """Something that could not be gathered."""


class Taken(msgspec.Struct):
    """One file of an SDK folder: its size, its sha256, and what it was taken from."""

    size: int
    sha256: str
    source: str


class SdkSummary(msgspec.Struct):
    """`sdk.json`: files and licence texts by path inside the folder."""

    target: str
    files: dict[str, Taken]
    licenses: dict[str, str]


@dataclass(frozen=True, slots=True)
class Sources:
    """What to gather from. `npm` is used when nothing else gives headers."""

    headers: Path | None = None
    aars: tuple[Path, ...] = ()
    wheels: tuple[Path, ...] = ()
    qairt: Path | None = None
    maven: tuple[str, ...] = ()
    npm: str = NPM_PACKAGE


def sdk_folder(target: str) -> Path:
    """Where a target's SDK is gathered unless another folder is named."""
    return cache_folder() / "sdk" / target


def gather(
    target: str, sources: Sources, folder: Path, say: Callable[[str], None] = lambda text: None
) -> SdkSummary:
    """Gather into `folder` (made anew when all went well) and return what was taken.

    Raises UsageError where `folder` holds anything but an SDK gathered before, which would be lost.
    """
    if target not in TARGETS:
        raise UsageError(f"unknown target {target!r}", f"one of: {', '.join(TARGETS)}")
    folder = folder.resolve()
    _check_place(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".sdk-") as scratch:
        gatherer = _Gatherer(target, Path(scratch) / "sdk", Path(scratch), say)
        gatherer.gather(sources)
        (gatherer.folder / _SUMMARY).write_bytes(
            msgspec.json.format(msgspec.json.encode(gatherer.summary), indent=1)
        )
        _check_place(folder)  # again: gathering takes minutes
        if folder.exists():
            shutil.rmtree(folder)
        gatherer.folder.rename(folder)
    return gatherer.summary


def _check_place(folder: Path) -> None:
    ours = not folder.exists() or (
        folder.is_dir() and ((folder / _SUMMARY).is_file() or not any(folder.iterdir()))
    )
    if not ours:
        raise UsageError(f"{folder} exists already and is no SDK folder", "choose another one: -o FOLDER")


def headers(folder: Path) -> Path:
    """The include folder of a gathered SDK; raises UsageError where there is none."""
    include = folder / "include"
    if not (include / "onnxruntime_cxx_api.h").is_file():
        raise UsageError(
            f"there are no ONNX Runtime headers in {include}", "gather them with `hexgraft device sdk`"
        )
    return include


@dataclass(slots=True)
class _Gatherer:
    target: str
    folder: Path
    scratch: Path
    say: Callable[[str], None]
    summary: SdkSummary = field(init=False)

    def __post_init__(self) -> None:
        self.summary = SdkSummary(self.target, {}, {})
        self.folder.mkdir()

    def gather(self, sources: Sources) -> None:
        aars = [*sources.aars, *(self._maven(coordinates) for coordinates in sources.maven)]
        if sources.headers is None and not aars:
            aars.append(self._npm(sources.npm))
        if sources.headers is not None:
            for file in sorted(sources.headers.glob("onnxruntime_*")):
                self._take(file, f"include/{file.name}", str(sources.headers.name))
        for aar in aars:
            self._aar(aar)
        for wheel in sources.wheels:
            self._wheel(wheel)
        if sources.qairt is not None:
            self._qairt(sources.qairt)
        headers(self.folder)

    def _aar(self, path: Path) -> None:
        with _archive(path) as archive:
            for name in archive.namelist():
                if name.startswith("headers/") and not name.endswith("/"):
                    self._extract(archive, name, f"include/{PurePosixPath(name).name}", path.name)
            library = _AAR_LIBRARY.get(self.target)
            if library is not None and library in archive.namelist():
                self._extract(archive, library, "lib/libonnxruntime.so", path.name)
            if self.target == "android-arm64":
                self._libraries(archive, "jni/arm64-v8a/", path.name)

    def _wheel(self, path: Path) -> None:
        """ONNX Runtime's or the QNN provider's Python wheel of the target's platform."""
        if self.target.split("-")[1] not in path.name or "linux" not in path.name or "android" in self.target:
            raise UsageError(
                f"{path.name} is not a wheel for {self.target}", "download the wheel of that platform"
            )
        with _archive(path) as archive:
            for name in archive.namelist():
                if re.fullmatch(r"onnxruntime/capi/libonnxruntime\.so\.[\d.]+", name):
                    self._extract(archive, name, "lib/libonnxruntime.so", path.name)
            self._libraries(archive, "onnxruntime_qnn/", path.name)
            # The C++ runtime and others that Qualcomm's libraries ask for by these very names.
            for name in archive.namelist():
                if re.fullmatch(r"onnxruntime_qnn\.libs/[^/]+\.so[.\d]*", name):
                    self._extract(archive, name, f"lib/{PurePosixPath(name).name}", path.name)
            self._licences(archive, path.name)

    def _libraries(self, archive: zipfile.ZipFile, below: str, source: str) -> None:
        for name in archive.namelist():
            base = PurePosixPath(name).name
            if name.startswith(below) and _QNN_LIBRARY.fullmatch(base):
                self._extract(archive, name, f"lib/{base}", source)

    def _licences(self, archive: zipfile.ZipFile, source: str) -> None:
        for name in archive.namelist():
            base = PurePosixPath(name).name
            if _LICENCE.fullmatch(base) and name.count("/") <= 1:
                place = f"licenses/{source.split('-')[0]}-{base}"
                self._extract(archive, name, place, source)
                self.summary.licenses[place] = source

    def _qairt(self, root: Path) -> None:
        """An unpacked Qualcomm AI Runtime SDK: the target's libraries and all skeletons for the NPU."""
        folder = root / "lib" / _QAIRT_FOLDERS[self.target]
        if not folder.is_dir():
            raise UsageError(
                f"{root} has no {folder.relative_to(root)}", "give the unpacked QAIRT SDK's own folder"
            )
        skeletons = sorted(root.glob("lib/hexagon-v*/unsigned/libQnnHtpV*Skel.so"))
        for file in [*sorted(folder.glob("*.so")), *skeletons]:
            if _QNN_LIBRARY.fullmatch(file.name):
                self._take(file, f"lib/{file.name}", root.name)
        self._keep_licences(sorted(root.iterdir()), root.name)

    def _npm(self, package: str) -> Path:
        self.say(f"fetching {package} from npm (150 MB) for ONNX Runtime's headers")
        place = self.scratch / "npm"
        place.mkdir()
        _run(["npm", "pack", package, "--pack-destination", str(place), "--silent"], "npm")
        archive = next(place.glob("*.tgz"), None)
        if archive is None:
            raise SdkError(f"npm packed nothing for {package}")
        try:
            _unpack_npm(archive, place)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise SdkError(f"{package} came damaged: {error}", "run the command again") from error
        aar = place / _NPM_AAR.name
        self._keep_licences(sorted(place.iterdir()), package)
        if not aar.is_file():
            raise SdkError(f"{package} holds no onnxruntime.aar", "give an AAR with --aar")
        return aar

    def _maven(self, coordinates: str) -> Path:
        """An AAR by its coordinates, group:artifact:version, through the user's own Maven."""
        if not re.fullmatch(r"[\w.-]+:[\w.-]+:[\w.-]+", coordinates):
            raise UsageError(f"{coordinates!r} are no Maven coordinates", "example: group:artifact:1.0")
        place = self.scratch / "maven"
        artifact = f"-Dartifact={coordinates}:aar"
        _run(["mvn", "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={place}"], "Maven")
        _, name, version = coordinates.split(":")
        return place / f"{name}-{version}.aar"

    def _keep_licences(self, files: Iterable[Path], source: str) -> None:
        for file in files:
            if file.is_file() and _LICENCE.fullmatch(file.name):
                place = f"licenses/{re.split('[@-]', source)[0]}-{file.name}"
                self._take(file, place, source)
                self.summary.licenses[place] = source

    def _extract(self, archive: zipfile.ZipFile, name: str, place: str, source: str) -> None:
        to = self.folder / place
        to.parent.mkdir(exist_ok=True)
        with archive.open(name) as stream, to.open("wb") as out:
            shutil.copyfileobj(stream, out)
        self._record(to, place, source)

    def _take(self, file: Path, place: str, source: str) -> None:
        to = self.folder / place
        to.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, to)
        self._record(to, place, source)

    def _record(self, file: Path, place: str, source: str) -> None:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        self.summary.files[place] = Taken(file.stat().st_size, digest, source)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive to read from. What goes wrong where its content is written, as on a full disk, passes."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise SdkError(f"{path} cannot be read: {error}", _WHOLE) from error
    try:
        with archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SdkError(f"{path} is damaged: {error}", _WHOLE) from error


def _unpack_npm(archive: Path, folder: Path) -> None:
    """Write the AAR and the licences of an npm package into `folder`: nothing else, and under no path that
    the archive chooses. Filters for whole archives came with Python 3.11.4 only."""
    with tarfile.open(archive) as packed:
        for member in packed:
            path = PurePosixPath(member.name)
            wanted = path == _NPM_AAR or (len(path.parts) == 2 and _LICENCE.fullmatch(path.name))
            stream = packed.extractfile(member) if wanted and member.isfile() else None
            if stream is not None:
                with (folder / path.name).open("wb") as out:
                    shutil.copyfileobj(stream, out)


def _run(command: list[str], name: str) -> None:
    if shutil.which(command[0]) is None:
        raise SdkError(
            f"{name} is not installed", "install it, or give files with --headers, --aar or --wheel"
        )
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SdkError(
            f"{name} failed: {said[-1] if said else done.returncode}", f"try it by hand: {' '.join(command)}"
        )
