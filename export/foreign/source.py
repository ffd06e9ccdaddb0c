"""A graph of the vendor's export: its inputs and outputs, whatever file it lies in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hexgraft.host.layout import INTEGERS
from hexgraft.host.manifest import Encoding
from hexgraft.models.errors import ExportError
from hexgraft.models.file_names import clip, is_file_name

QUANTISED = "give graphs whose inputs and outputs are float32, or quantised with one scale each"
_COMPLETE = "is it complete, and of the vendor's export? copy or download the folder again"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output; `encoding` where it is quantised."""

    dtype: str
    shape: tuple[int, ...]
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class SourceGraph:
    """One graph: a part of a pass of one width. `file` is an ONNX file, or the context binary it lies in."""

    name: str
    file: Path
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def width(self) -> int:
        """Rows T of a pass, 0 where no input tells."""
        if "input_ids" in self.inputs:
            return self.inputs["input_ids"].shape[-1]
        return self.inputs["attention_mask"].shape[-2] if "attention_mask" in self.inputs else 0

    @property
    def columns(self) -> int | None:
        """Columns CL of the mask, None in a part without one."""
        mask = self.inputs.get("attention_mask")
        return mask.shape[-1] if mask is not None else None


def read_onnx(file: Path) -> SourceGraph:
    """A static graph in an ONNX file; integers at its border are explained by the DequantizeLinear or
    QuantizeLinear next to them. Raises ExportError where that fails, or a size is not fixed."""
    try:
        proto = onnx.load(file, load_external_data=False)
    except Exception as error:  # protobuf raises types of its own
        raise ExportError(f"{file} cannot be read as an ONNX graph", _COMPLETE) from error
    if not proto.graph.node:  # an empty file, too, is a message of protobuf
        raise ExportError(f"{file} holds no graph", _COMPLETE)
    constants = _constants(proto)
    readers: dict[str, onnx.NodeProto] = {}
    makers: dict[str, onnx.NodeProto] = {}
    for node in proto.graph.node:
        if node.op_type == "DequantizeLinear":
            readers.setdefault(node.input[0], node)
        if node.op_type == "QuantizeLinear":
            makers[node.output[0]] = node
    inputs = {
        value.name: _tensor(file, value, readers.get(value.name), constants)
        for value in proto.graph.input
        if value.name not in constants
    }
    outputs = {
        value.name: _tensor(file, value, makers.get(value.name), constants) for value in proto.graph.output
    }
    return SourceGraph(proto.graph.name or file.stem, file, inputs, outputs)


def external_files(file: Path) -> set[str]:
    """Names of the weight files beside an ONNX file that it refers to."""
    proto = onnx.load(file, load_external_data=False)
    tensors = [
        *proto.graph.initializer,
        *(a.t for n in proto.graph.node for a in n.attribute if a.HasField("t")),
    ]
    found = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    for name in found:
        if not is_file_name(name) or not (file.parent / name).is_file():
            raise ExportError(
                f"{file} keeps weights in {clip(name)!r}, which is not a file beside it",
                "copy or download the whole folder",
            )
    return found


def _constants(proto: onnx.ModelProto) -> dict[str, TensorProto]:
    found = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def _tensor(
    file: Path,
    value: onnx.ValueInfoProto,
    quantiser: onnx.NodeProto | None,
    constants: Mapping[str, TensorProto],
) -> Tensor:
    kind = value.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim)
    if 0 in shape:
        raise ExportError(
            f"{file}: {value.name} has no fixed size",
            "give the graphs with a fixed width and context",
        )
    if dtype not in INTEGERS:
        return Tensor(dtype, shape)
    if quantiser is None:
        raise ExportError(f"{file}: nothing says what the integers of {value.name} mean", QUANTISED)
    scale, zero = _scalars(file, quantiser, constants)
    return Tensor(dtype, shape, Encoding(dtype, scale, zero))


def _scalars(file: Path, node: onnx.NodeProto, constants: Mapping[str, TensorProto]) -> tuple[float, int]:
    """Scale and zero point of a Q or DQ node."""
    values: list[Any] = []
    for name in node.input[1:3]:
        tensor = constants.get(name)
        array = None if tensor is None or tensor.external_data else numpy_helper.to_array(tensor)
        if array is None or array.size != 1:
            raise ExportError(
                f"{file}: {node.name or node.output[0]} has no single constant scale and zero point",
                QUANTISED,
            )
        values.append(array.reshape(-1)[0])
    return float(values[0]), int(values[1]) if len(values) > 1 else 0
