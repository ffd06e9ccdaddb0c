"""Copies the vendor's graphs into a bundle, and says in the bundle's words what they are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from hexgraft.export.foreign.binary import Binary
from hexgraft.export.foreign.chain import Chains
from hexgraft.export.foreign.source import SourceGraph, Tensor, external_files
from hexgraft.export.htp.soc import Soc, find_soc
from hexgraft.export.htp.wrapper import Wrapper, write_wrapper
from hexgraft.host.layout import BORDER
from hexgraft.host.manifest import GraphEntry, HtpEntry, VendorEntry
from hexgraft.models.errors import ExportError

ROLE = "target"


def copy_onnx(chains: Chains, folder: Path, precision: str) -> list[GraphEntry]:
    """Copy ONNX graphs and the weights beside them into the bundle `folder`; their entries, for the CPU."""
    place = folder / ROLE
    place.mkdir(exist_ok=True)
    entries = []
    for graph, width, vendor in _graphs(chains):
        for name in {graph.file.name} | external_files(graph.file):
            if not (place / name).exists():
                shutil.copyfile(graph.file.parent / name, place / name)
        file = f"{ROLE}/{graph.file.name}"
        entries.append(GraphEntry(file, "cpu", precision, width, chains.columns - width, vendor=vendor))
    return entries


def copy_binaries(
    chains: Chains, binaries: Sequence[Binary], folder: Path, precision: str, soc: str | None
) -> list[GraphEntry]:
    """Copy context binaries and write a wrapper for each of their graphs in use; their entries, for the NPU,
    and for the emulator where no binary holds more than one graph."""
    made = {binary.file: binary for binary in binaries}
    chip = _chip(binaries, soc)
    place = Path(ROLE) / "htp" / chip.name.lower()
    (folder / place).mkdir(parents=True, exist_ok=True)
    single = all(len(binary.graphs) == 1 for binary in binaries)
    entries = []
    for graph, width, vendor in _graphs(chains):
        binary = made[graph.file]
        copy = folder / place / graph.file.name
        if not copy.exists():
            shutil.copyfile(graph.file, copy)
        wrapper = folder / place / f"{re.sub(r'[^A-Za-z0-9._-]', '_', graph.name)}.onnx"
        if wrapper.exists():
            raise ExportError(
                f"two graphs have the name {graph.name}", "leave the parts of one model in the folder"
            )
        named = Wrapper(graph.name, copy.name, binary.qairt)
        write_wrapper(wrapper, named, _values(graph.inputs), _values(graph.outputs))
        htp = HtpEntry(
            soc=chip.name,
            soc_model=chip.soc_model,
            arch=chip.arch,
            qairt=binary.qairt,
            binary=(place / copy.name).as_posix(),
            shared=len(binary.graphs) > 1,
            part=vendor.part,
            parts=vendor.parts,
        )
        for provider in ("htp", "htp-sim") if single else ("htp",):
            file = (place / wrapper.name).as_posix()
            capacity = chains.columns - width
            entries.append(GraphEntry(file, provider, precision, width, capacity, htp, vendor))
    return entries


def _graphs(chains: Chains) -> Iterator[tuple[SourceGraph, int, VendorEntry]]:
    for width, parts in chains.parts.items():
        for number, graph in enumerate(parts):
            tensors = {**graph.inputs, **graph.outputs}
            encodings = {
                name: tensor.encoding
                for name, tensor in tensors.items()
                if name in BORDER and tensor.encoding is not None
            }
            logits = graph.outputs.get("logits")
            last = width > 1 and logits is not None and logits.shape[1] == 1
            yield graph, width, VendorEntry(number, len(parts), encodings, last)


def _chip(binaries: Sequence[Binary], soc: str | None) -> Soc:
    """The chip the binaries are for: what the user says, or what they say themselves."""
    if soc is not None:
        return find_soc(soc)
    numbers = {binary.soc_model for binary in binaries}
    if len(numbers) != 1 or 0 in numbers:
        raise ExportError(
            "the binaries do not say what chip they are for", "say it with --soc, as in --soc SM8650"
        )
    return find_soc(str(numbers.pop()))


def _values(tensors: Mapping[str, Tensor]) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)), tensor.shape
        )
        for name, tensor in tensors.items()
    ]
