"""Writes a folder that Qualcomm's Genie loads, out of a bundle with graphs compiled for an NPU."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx

from hexgraft.export.foreign.genie_config import (
    CONFIG,
    EXTENSIONS,
    ContextOptions,
    Core,
    Device,
    Extensions,
    Memory,
    genie_config,
)
from hexgraft.export.foreign.genie_library import check_config, find_genie
from hexgraft.export.whole_folder import whole_folder
from hexgraft.host.bundle import Bundle
from hexgraft.host.layout import is_vendor, vendor_of
from hexgraft.host.manifest import GraphEntry, HtpEntry, ModelEntry
from hexgraft.models.errors import ExportError, UsageError

_NAMED = re.compile(r"ar\d+_cl\d+")
"""How Genie reads the sizes of a graph whose inputs do not tell them."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: the widths Genie will use, CL, and the library that accepted the config, or none."""

    widths: tuple[int, ...]
    columns: int
    library: Path | None


@dataclass(frozen=True, slots=True)
class GenieOptions:
    """Which build (None: the first), and which one width of hexgraft's own layout (None: the narrowest)."""

    soc: str | None = None
    precision: str | None = None
    width: int | None = None


def write_genie(bundle: Bundle, path: Path, options: GenieOptions) -> Written:
    """Write the folder at `path`, which must not exist: binaries, config, backend extensions, tokenizer.

    Raises ExportError for bundles that Genie would not load or would read wrongly, or if libGenie is here and
    refuses the config; then nothing is left.
    """
    model = bundle.target
    _check_model(model)
    graphs = sorted(_choose(bundle, options), key=lambda graph: (_htp(graph).part, graph.width or 0))
    widths = tuple(sorted({graph.width or 0 for graph in graphs}))
    columns = max((graph.width or 0) + (graph.capacity or 0) for graph in graphs)
    binaries = list(dict.fromkeys(_htp(graph).binary for graph in graphs))
    names = [_name(bundle, graph) for graph in graphs]
    _check_order(graphs, names)
    held = [graph for graph in model.graphs if graph.htp is not None and graph.htp.binary in binaries]
    selected = names if len({graph.file for graph in held}) > len(graphs) else []
    with whole_folder(path) as folder:
        files = _copy(bundle, binaries, folder)
        config = genie_config(model, bundle.manifest.tokenizer, columns, files, selected)
        _write(folder / CONFIG, config)
        _write(folder / EXTENSIONS, _extensions(_htp(graphs[0])))
        shutil.copyfile(bundle.file(bundle.manifest.tokenizer.file), folder / "tokenizer.json")
        library = find_genie()
        if library is not None:
            check_config(library, folder)
    return Written(widths, columns, library)


def _check_model(model: ModelEntry) -> None:
    if model.window is not None or model.local_rope is not None:
        raise ExportError(
            f"{model.name} has layers with a window, whose mask is an input that Genie does not fill",
            "run the bundle with hexgraft's own runner",
        )


def _choose(bundle: Bundle, options: GenieOptions) -> list[GraphEntry]:
    """The graphs Genie is to use: of one build, and of hexgraft's own layout one width at one capacity.

    Genie takes the past of every graph to have CL - T columns of one CL. Two widths of hexgraft's layout do
    not, and it gives other tokens without a word.
    """
    model = bundle.target
    compiled = [graph for graph in model.graphs if graph.provider == "htp" and graph.htp is not None]
    if not compiled:
        raise ExportError(
            f"{bundle.path} has no graphs compiled for an NPU", "export it with `--target htp --soc SOC`"
        )
    wanted = [
        graph
        for graph in compiled
        if options.soc in (None, _htp(graph).soc) and options.precision in (None, graph.precision)
    ]
    if not wanted:
        builds = ", ".join(dict.fromkeys(f"{_htp(graph).soc} {graph.precision}" for graph in compiled))
        raise UsageError(f"{bundle.path} is not built for that chip and precision", f"it has: {builds}")
    first = wanted[0]
    build = [g for g in wanted if (_htp(g).soc, g.precision) == (_htp(first).soc, first.precision)]
    if is_vendor(model):
        if options.width is not None:
            raise UsageError("graphs of the vendor's layout go to Genie in all widths", "leave out --width")
        if any(vendor_of(graph).last_logits for graph in build):
            raise ExportError(
                "a graph gives the logits of its last row alone, which has not been tried with Genie"
            )
        return build
    widths = sorted({graph.width or 0 for graph in build})
    width = widths[0] if options.width is None else options.width
    if width not in widths:
        raise UsageError(
            f"{bundle.path} has no graph of {width} rows", f"its widths are {', '.join(map(str, widths))}"
        )
    return [g for g in build if g.width == width and g.capacity == model.context]


def _htp(graph: GraphEntry) -> HtpEntry:
    if graph.htp is None:
        raise ExportError(f"{graph.file} does not say what chip it was compiled for", "export it again")
    return graph.htp


def _name(bundle: Bundle, graph: GraphEntry) -> str:
    """A graph's name inside its binary. One that takes neither mask nor cache must name its sizes."""
    node = onnx.load(bundle.file(graph.file), load_external_data=False).graph.node[0]
    sized = any(name == "attention_mask" or name.startswith("past_") for name in node.input)
    if not sized and not _NAMED.search(node.name):
        raise ExportError(
            f"part {_htp(graph).part + 1} is the embedding alone, and Genie cannot tell its context length: "
            f"its graph is not named after it ({node.name})",
            "export again with a larger --part-size, so that the embedding stays with the first layers",
        )
    return str(node.name)


def _check_order(graphs: list[GraphEntry], names: list[str]) -> None:
    """Genie runs the parts of a width in the order of their graphs' names, however they are listed."""
    for width in {graph.width for graph in graphs}:
        found = [name for graph, name in zip(graphs, names, strict=True) if graph.width == width]
        if found != sorted(found):
            raise ExportError(
                f"Genie would run the {len(found)} parts of the graph of {width} rows in another order: "
                "by the names of their graphs, which the compiler here chooses",
                "export again with a --part-size that makes one part, or --via aihub, which names graphs",
            )


def _copy(bundle: Bundle, binaries: list[str], folder: Path) -> list[str]:
    """Copy the binaries under the names AI Hub gives them; their names."""
    stem = re.sub(r"[^a-z0-9]+", "_", bundle.target.name.lower()).strip("_") or "model"
    files = []
    for number, binary in enumerate(binaries):
        name = f"{stem}_part_{number + 1}_of_{len(binaries)}.bin"
        shutil.copyfile(bundle.file(binary), folder / name)
        files.append(name)
    return files


def _extensions(htp: HtpEntry) -> Extensions:
    device = Device(htp.soc_model, f"v{htp.arch}", [Core(0, "burst", 100)])
    return Extensions([device], Memory("shared_buffer"), ContextOptions(htp.shared))


def _write(file: Path, value: object) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
