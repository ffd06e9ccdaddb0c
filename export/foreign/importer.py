"""Makes a bundle of a folder that the vendor's tools exported: its graphs as they are, its layout in the
manifest."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hexgraft.export.foreign.binary import Binary, read_binary
from hexgraft.export.foreign.chain import Chains, check_shapes, choose_chains, kv_encodings, narrowed
from hexgraft.export.foreign.copies import copy_binaries, copy_onnx
from hexgraft.export.foreign.source import SourceGraph, external_files, read_onnx
from hexgraft.export.whole_folder import whole_folder
from hexgraft.export.writer import (
    Report,
    hash_files,
    rope_entry,
    write_manifest,
    write_tokenizer,
)
from hexgraft.host.manifest import (
    FORMAT,
    VENDOR_LAYOUT,
    Encoding,
    GraphEntry,
    Manifest,
    ModelEntry,
    Provenance,
)
from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.errors import ExportError, mistyped
from hexgraft.models.file_names import readable_name
from hexgraft.models.hf_checkpoint import license_of
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.hf_tokenizer import tokenizer_from_hf
from hexgraft.models.json_file import read_json

FLOAT_MASK = -100.0
"""What hides a column where the mask is float32: what the vendor's own generators take."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`context_length` CL and `widths` choose among the graphs (None: the largest, all); `checkpoint` is the
    folder with config.json and tokenizer.json where the source lacks them; `soc` the chip the binaries are
    for, where they do not say."""

    context_length: int | None = None
    widths: tuple[int, ...] | None = None
    checkpoint: Path | None = None
    soc: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """What a folder holds: graphs by kind ("onnx", "binary"), context binaries, what metadata.json says."""

    folder: Path
    graphs: Mapping[str, Sequence[SourceGraph]]
    binaries: Sequence[Binary]
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.metadata.get("model_name") or self.folder.resolve().name)


def import_bundle(
    folder: Path, path: Path, *, options: ImportOptions, report: Report, say: Callable[[str], None]
) -> None:
    """Write a bundle at `path`, which must not exist, out of the vendor's export in `folder`.

    Raises ExportError where the folder's graphs do not make a model, CheckpointError where its config.json or
    tokenizer.json are missing or not understood.
    """
    source = _read(folder)
    chains = _choose(source, options)
    place = options.checkpoint or folder
    if not (place / "config.json").is_file():
        raise ExportError(
            f"{place} has no config.json",
            "name the folder with the model's config.json and tokenizer.json: --checkpoint FOLDER",
        )
    values = read_json(place / "config.json")
    config = config_from_hf(values, str(place / "config.json"))
    first = next(iter(chains.values()))
    context = first.columns - max(first.parts)
    if config.within(context).window is not None or config.local_rope is not None:
        raise ExportError(
            f"{source.name} has layers with a window, which the vendor's graphs show in no input",
            "choose a shorter --context-length, which no window cuts",
        )
    if context > config.context:
        limit = f": {config.context_limit}" if config.context_limit else ""
        raise ExportError(
            f"these graphs have a cache of {context} slots, {source.name} is right for {config.context} "
            "positions",
            f"choose a shorter --context-length{limit}",
        )
    for found in chains.values():
        check_shapes(found, config)
    notes: list[str] = []
    vocabulary = tokenizer_from_hf(place, values, config.vocab, notes)
    license = license_of(place / "README.md")
    provenance = Provenance(readable_name(folder.resolve().name), "AI Hub export", license)
    with whole_folder(path) as whole:
        graphs: list[GraphEntry] = []
        precision = _precision(source, chains)
        if "onnx" in chains:
            graphs += copy_onnx(chains["onnx"], whole, precision)
        if "binary" in chains:
            graphs += copy_binaries(chains["binary"], source.binaries, whole, precision, options.soc)
        tokenizer = write_tokenizer(vocabulary, whole)
        files = sorted(file for file in whole.rglob("*") if file.is_file())
        manifest = Manifest(
            format=FORMAT,
            hexgraft=importlib.metadata.version("hexgraft"),
            target=_model_entry(source.name, config, chains, graphs),
            draft=None,
            tokenizer=tokenizer,
            provenance={"target": provenance},
            parity={},
            files=hash_files(whole, files, report),
        )
        write_manifest(manifest, whole)
    for note in notes:
        say(f"note: {note}")
    for width, parts in first.parts.items():
        say(f"{width} rows over {first.columns - width} slots: {', '.join(graph.name for graph in parts)}")


def _read(folder: Path) -> Source:
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise mistyped(ExportError(what, "give the folder that the vendor's export wrote"))
    graphs: dict[str, Sequence[SourceGraph]] = {}
    onnx_files, bin_files = sorted(folder.glob("*.onnx")), sorted(folder.glob("*.bin"))
    if onnx_files:
        graphs["onnx"] = [read_onnx(file) for file in onnx_files]
    binaries = [
        read_binary(file) for file in bin_files if not onnx_files or not _is_weights(file, onnx_files)
    ]
    if binaries:
        graphs["binary"] = [graph for binary in binaries for graph in binary.graphs]
    if not graphs:
        raise ExportError(
            f"{folder} holds neither .onnx graphs nor .bin context binaries",
            "give the folder of an AI Hub export",
        )
    metadata: Mapping[str, Any] = {}
    if (folder / "metadata.json").is_file():
        metadata = read_json(folder / "metadata.json")
    return Source(folder, graphs, binaries, metadata)


def _is_weights(file: Path, onnx_files: Sequence[Path]) -> bool:
    """Whether a .bin holds the weights of an ONNX graph beside it, and is no context binary then."""
    return any(file.name in external_files(graph) for graph in onnx_files)


def _choose(source: Source, options: ImportOptions) -> dict[str, Chains]:
    """Chains of each kind, all of one context length and the same widths."""
    chains = {kind: choose_chains(graphs, options.context_length) for kind, graphs in source.graphs.items()}
    columns = {found.columns for found in chains.values()}
    if len(columns) > 1:
        raise ExportError(
            f"the ONNX graphs and the binaries have the context lengths {sorted(columns)}",
            "say which with --context-length, or leave one kind in the folder",
        )
    common = set.intersection(*(set(found.parts) for found in chains.values()))
    widths = options.widths or tuple(sorted(common))
    if not widths:
        raise ExportError(
            "the ONNX graphs and the binaries have no width in common", "leave one kind in the folder"
        )
    return {kind: narrowed(found, widths) for kind, found in chains.items()}


def _precision(source: Source, chains: Mapping[str, Chains]) -> str:
    """What metadata.json calls it, or else whether anything at the border is quantised."""
    named = source.metadata.get("precision")
    if isinstance(named, str) and named:
        return named
    tensors = [
        tensor
        for found in chains.values()
        for parts in found.parts.values()
        for graph in parts
        for tensor in (*graph.inputs.values(), *graph.outputs.values())
    ]
    return "quantised" if any(tensor.encoding is not None for tensor in tensors) else "fp32"


def _model_entry(
    name: str, config: ModelConfig, chains: Mapping[str, Chains], graphs: list[GraphEntry]
) -> ModelEntry:
    first = next(iter(chains.values()))
    caches = [kv_encodings(found, config.layers) for found in chains.values()]
    if any(cache != caches[0] for cache in caches):
        raise ExportError(
            "the ONNX graphs and the binaries store keys and values differently",
            "leave one kind in the folder",
        )
    return ModelEntry(
        name=name,
        architecture=config.family,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        rope=rope_entry(config.rope),
        context=first.columns - max(first.parts),
        widths=list(first.parts),
        kv_dtype=caches[0][0].key.dtype if caches[0] else "float32",
        kv_layout=VENDOR_LAYOUT,
        mask_value=_mask_value(chains.values()),
        graphs=graphs,
        parameters=sum(prod(shape) for shape in tensor_shapes(config).values()),
        kv_encodings=caches[0],
    )


def _mask_value(chains: Iterable[Chains]) -> float:
    """What hides a column: the least number every mask can hold, if it is quantised."""
    encodings: set[Encoding] = {
        tensor.encoding
        for found in chains
        for parts in found.parts.values()
        for graph in parts
        for name, tensor in graph.inputs.items()
        if name == "attention_mask" and tensor.encoding is not None
    }
    least = [(int(np.iinfo(e.dtype).min) - e.zero) * e.scale for e in encodings]
    value = max(least, default=FLOAT_MASK)
    if value > -20:
        raise ExportError(f"the mask of these graphs reaches down to {value:g} only, which hides nothing")
    return value
