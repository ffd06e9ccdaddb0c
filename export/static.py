"""Static graphs: the bundle's symbolic graph with width and capacity fixed, node for node the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from hexgraft.host.bundle import Bundle
from hexgraft.models.decoder import dimensions
from hexgraft.models.graph import fix_dimensions


def static_name(role: str, width: int, capacity: int) -> str:
    """`target_ar16_cl2064`: rows a pass, and columns of the mask, in the words of Qualcomm's exports."""
    return f"{role}_ar{width}_cl{capacity + width}"


def cut_static(bundle: Bundle, role: str, width: int, folder: Path) -> Path:
    """Write the static graph of one width into `folder`, beside a copy of the bundle's weights."""
    model = bundle.model(role)
    source = bundle.file(bundle.graph(role, "cpu").file)
    proto = onnx.load(source, load_external_data=False)
    fixed = fix_dimensions(proto, dimensions(width, model.context))
    fixed.graph.name = static_name(role, width, model.context)
    for location in {_location(tensor) for tensor in fixed.graph.initializer} - {None}:
        # A copy: onnx and ONNX Runtime refuse weights behind hard or symbolic links.
        if not (folder / str(location)).exists():
            shutil.copyfile(source.parent / str(location), folder / str(location))
    path = folder / f"{fixed.graph.name}.onnx"
    onnx.save(fixed, path)
    return path


def _location(tensor: onnx.TensorProto) -> str | None:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), None)
