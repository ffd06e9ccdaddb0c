"""Whether a bundle and a release of the vendor's libraries are for this phone, found out before they move."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hexgraft.host.adb.errors import Unfit
from hexgraft.host.adb.facts import PhoneFacts
from hexgraft.host.adb.store import Folder, Piece
from hexgraft.host.bundle import Bundle
from hexgraft.host.manifest import MANIFEST, GraphEntry, HtpEntry
from hexgraft.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class Build:
    """One of a bundle's builds for the NPU: its chip, that chip's number, Hexagon version, the precision."""

    soc: str
    soc_model: int
    arch: int
    precision: str

    def has(self, graph: GraphEntry) -> bool:
        return graph.htp is not None and (graph.htp.soc, graph.precision) == (self.soc, self.precision)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which build the user named, None for any."""

    soc: str | None = None
    precision: str | None = None

    def fits(self, build: Build) -> bool:
        return self.soc in (None, build.soc) and self.precision in (None, build.precision)

    def refusal(self, bundle: Bundle, graphs: str) -> UsageError:
        words = " ".join(filter(None, (self.soc, self.precision)))
        built = ", ".join(f"{build.soc} {build.precision}" for build in builds_of(bundle, graphs))
        return UsageError(f"{bundle.path} is not built for {words}", f"it has: {built}")


_RELEASE = re.compile(rb"v(\d+)\.(\d+)\.(\d+)\.\d{6,}")
_BLOCK = 8 << 20


def graphs_for(bundle: Bundle, target: str, provider: str) -> str:
    """Which of a bundle's graphs a runner loads: phones the NPU's own, Linux those for the emulator."""
    wanted = provider if provider == "cpu" or target.startswith("android") else "htp-sim"
    if not any(graph.provider == wanted for graph in _graphs(bundle)):
        hint = "export again with `--target htp --soc CHIP`, or use --provider cpu"
        raise Unfit(f"{bundle.path} has no {wanted} graphs", hint)
    return wanted


def builds_of(bundle: Bundle, graphs: str) -> list[Build]:
    """The builds of the bundle's NPU graphs of one kind, in the bundle's order."""
    found = [
        Build(g.htp.soc, g.htp.soc_model, g.htp.arch, g.precision)
        for g in _graphs(bundle)
        if g.provider == graphs and g.htp is not None
    ]
    return list(dict.fromkeys(found))


def bundle_folder(bundle: Bundle, graphs: str, build: Build | None = None) -> Folder:
    """The manifest and the files that running `graphs` needs, as a folder for the phone.

    With `build`, of all that is compiled for an NPU only that build's files are among them.
    """
    manifest = bundle.file(MANIFEST)
    chosen = [g for g in _graphs(bundle) if g.provider == graphs and (build is None or build.has(g))]
    needed = {name for graph in chosen for name in _files_of(graph, bundle)}
    others = {name for graph in _graphs(bundle) for name in _files_of(graph, bundle)} - needed
    pieces = {
        name: Piece(bundle.file(name), entry.size, entry.sha256)
        for name, entry in bundle.manifest.files.items()
        if name not in others
    }
    pieces[MANIFEST] = Piece(manifest, manifest.stat().st_size, bundle.digest)
    part = graphs if build is None else f"{graphs}-{build.soc}-{build.precision}"
    return Folder("bundles", bundle.digest, pieces, re.sub(r"[^\w.-]", "_", part))


def choose_build(
    bundle: Bundle, graphs: str, asked: Asked, facts: PhoneFacts, soc_model: int | None
) -> Build | None:
    """The build of the bundle to run on this phone, None where `graphs` are the CPU's. Raises Unfit if none
    is for its chip, UsageError if what was asked for is not in the bundle.

    `soc_model` is the number QAIRT knows the phone's chip by, None where the chip is not known. The emulator
    takes any chip's.
    """
    if graphs == "cpu":
        return None
    builds = [build for build in builds_of(bundle, graphs) if asked.fits(build)]
    if not builds:
        raise asked.refusal(bundle, graphs)
    for build in builds:
        if graphs == "htp-sim" or build.soc_model == soc_model or build.soc == facts.soc:
            return build
    if soc_model is None and asked.soc is not None:
        return builds[0]
    chip = facts.soc or facts.board or "a chip it does not name"
    names = ", ".join(dict.fromkeys(build.soc for build in builds))
    raise Unfit(
        f"{bundle.path} is compiled for {names}, the phone {facts.serial} has {chip}",
        f"export again with --soc {chip}" if soc_model is not None else "use --provider cpu",
    )


def check_release(bundle: Bundle, graphs: str, libraries: dict[str, Path]) -> None:
    """The vendor's libraries are of one release, and no older than what compiled the bundle's binaries."""
    found = {name: version for name, path in libraries.items() if (version := qairt_release(path))}
    if len(set(found.values())) > 1:
        which = ", ".join(f"{name} {_dotted(version)}" for name, version in sorted(found.items()))
        raise Unfit(
            f"the QNN libraries are of different releases: {which}",
            "gather all of one release: hexgraft device sdk",
        )
    compiled = {g.htp.qairt for g in _graphs(bundle) if g.provider == graphs and g.htp is not None}
    for version in found.values():
        for name in compiled:
            needed = _parse(name)
            if needed is not None and version < needed:
                raise Unfit(
                    f"{bundle.path} was compiled with QAIRT {name}, the libraries are {_dotted(version)}",
                    "gather libraries of that release or a newer one: hexgraft device sdk",
                )


def qairt_release(library: Path) -> tuple[int, int, int] | None:
    """The QAIRT release a library says it is of; None where it says nothing."""
    rest = b""
    with library.open("rb") as file:
        while block := file.read(_BLOCK):
            if match := _RELEASE.search(rest + block):
                return int(match[1]), int(match[2]), int(match[3])
            rest = block[-64:]
    return None


def _graphs(bundle: Bundle) -> list[GraphEntry]:
    models = [bundle.manifest.target, *([bundle.manifest.draft] if bundle.manifest.draft else [])]
    return [graph for model in models for graph in model.graphs]


def _files_of(graph: GraphEntry, bundle: Bundle) -> set[str]:
    """A graph's file, its binary, and its weights, which lie beside it under the same stem."""
    htp: HtpEntry | None = graph.htp
    if htp is not None:
        return {graph.file, htp.binary}
    stem = PurePosixPath(graph.file).with_suffix("")
    return {name for name in bundle.manifest.files if PurePosixPath(name).with_suffix("") == stem}


def _parse(text: str) -> tuple[int, int, int] | None:
    """A release, of which bundles made at AI Hub may not know the last number; None of other words."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
