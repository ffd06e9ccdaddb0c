"""Whether a bundle and a release of the vendor's libraries are for this phone, found out before they move."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from hexgraft.host.adb.errors import Unfit
from hexgraft.host.adb.facts import PhoneFacts
from hexgraft.host.adb.store import Folder, Piece
from hexgraft.host.bundle import Bundle
from hexgraft.host.manifest import MANIFEST, GraphEntry, HtpEntry

_RELEASE = re.compile(rb"v(\d+)\.(\d+)\.(\d+)\.\d{6,}")
_BLOCK = 8 << 20


def graphs_for(bundle: Bundle, target: str, provider: str) -> str:
    """Which of a bundle's graphs a runner loads: phones the NPU's own, Linux those for the emulator."""
    wanted = provider if provider == "cpu" or target.startswith("android") else "htp-sim"
    if not any(graph.provider == wanted for graph in _graphs(bundle)):
        hint = "export again with `--target htp --soc CHIP`, or use --provider cpu"
        raise Unfit(f"{bundle.path} has no {wanted} graphs", hint)
    return wanted


def bundle_folder(bundle: Bundle, graphs: str) -> Folder:
    """The manifest and the files that running `graphs` needs, as a folder for the phone."""
    manifest = bundle.file(MANIFEST)
    others = {name for g in _graphs(bundle) if g.provider != graphs for name in _files_of(g, bundle)}
    needed = {name for g in _graphs(bundle) if g.provider == graphs for name in _files_of(g, bundle)}
    pieces = {
        name: Piece(bundle.file(name), entry.size, entry.sha256)
        for name, entry in bundle.manifest.files.items()
        if name in needed or name not in others
    }
    pieces[MANIFEST] = Piece(manifest, manifest.stat().st_size, bundle.digest)
    return Folder("bundles", bundle.digest, pieces, graphs)


def choose_chip(bundle: Bundle, facts: PhoneFacts, soc_model: int | None) -> HtpEntry:
    """What the build of the bundle that fits the phone was compiled for; raises Unfit if none does.

    `soc_model` is the number QAIRT knows the phone's chip by, None where the chip is not known.
    """
    built = {g.htp.soc: g.htp for g in _graphs(bundle) if g.provider == "htp" and g.htp is not None}
    for name, entry in built.items():
        if entry.soc_model == soc_model or name == facts.soc:
            return entry
    chip = facts.soc or facts.board or "a chip it does not name"
    raise Unfit(
        f"{bundle.path} is compiled for {', '.join(built)}, the phone {facts.serial} has {chip}",
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
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
