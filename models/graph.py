"""A small builder of ONNX graphs whose weights are recipes: the graph is made at once, the numbers stream
in later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 23
"""The first opset with RMSNormalization and RotaryEmbedding, which the HTP runs as single operators."""
ORT_DOMAIN = "com.microsoft"
"""Of the operators that only ONNX Runtime has."""

IR_VERSION = 10
"""Old enough for every ONNX Runtime that knows opset 23."""


@dataclass(frozen=True, slots=True)
class Part:
    """One checkpoint tensor inside a weight, multiplied by `scale`."""

    tensor: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Weight:
    """One float32 initializer and how it is made: its parts stacked by rows, then transposed if asked.

    `shape` is the final shape. Checkpoint matrices are [out, in]; a MatMul wants [in, out], hence
    `transposed`.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    transposed: bool = False

    @property
    def nbytes(self) -> int:
        return 4 * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Loan:
    """A weight of another model that a graph uses where it lies: in `file` beside the graph, `offset` bytes
    behind its begin."""

    name: str
    shape: tuple[int, ...]
    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A model without its numbers: `proto` refers to `weights` by name as external data of `weights_file`."""

    proto: onnx.ModelProto
    weights: tuple[Weight, ...]
    offsets: tuple[int, ...]
    weights_file: str

    @property
    def weights_size(self) -> int:
        """Bytes of the weights file."""
        return self.offsets[-1] + self.weights[-1].nbytes

    def loan(self, name: str) -> Loan:
        """One of its weights, for another graph in the same folder."""
        for weight, offset in zip(self.weights, self.offsets, strict=True):
            if weight.name == name:
                return Loan(name, weight.shape, self.weights_file, offset)
        raise KeyError(name)


class GraphBuilder:
    """Collects nodes under meaningful value names, which later passes (quantisation, bisection) key on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._weights: dict[str, Weight] = {}
        self._loans: dict[str, Loan] = {}

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def weight(self, weight: Weight) -> str:
        self._weights[weight.name] = weight
        return weight.name

    def borrow(self, loan: Loan) -> str:
        """A float32 weight that lies in another model's weights file."""
        self._loans[loan.name] = loan
        return loan.name

    def constant(self, name: str, value: Sequence[int] | NDArray[Any]) -> str:
        """A small inline initializer; the same name twice must mean the same value."""
        array = np.asarray(value, dtype=np.int64) if isinstance(value, (list, tuple)) else np.asarray(value)
        self._constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def scalar(self, name: str, value: float) -> str:
        """A float32 constant without dimensions."""
        return self.constant(name, np.asarray(value, dtype=np.float32))

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes(op, inputs, [output], **attributes)
        return output

    def nodes(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> list[str]:
        """A node with several outputs, named after the first."""
        self._nodes.append(helper.make_node(op, list(inputs), list(outputs), name=outputs[0], **attributes))
        return list(outputs)

    def build(self, weights_file: str) -> Graph:
        """Lay the weights out one after the other in `weights_file`, page aligned so that they can be
        mapped."""
        initializers = list(self._constants.values())
        initializers += [_external(loan, loan.file, loan.offset) for loan in self._loans.values()]
        offsets = []
        offset = 0
        for weight in self._weights.values():
            initializers.append(_external(weight, weights_file, offset))
            offsets.append(offset)
            offset = -(-(offset + weight.nbytes) // 4096) * 4096
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, initializers)
        proto = helper.make_model(
            graph,
            producer_name="hexgraft",
            opset_imports=[
                helper.make_opsetid(domain, OPSET if not domain else 1)
                for domain in dict.fromkeys(["", *(node.domain for node in self._nodes)])
            ],
            ir_version=IR_VERSION,
        )
        return Graph(proto, tuple(self._weights.values()), tuple(offsets), weights_file)


def _external(weight: Weight | Loan, location: str, offset: int) -> onnx.TensorProto:
    tensor = TensorProto(name=weight.name, data_type=TensorProto.FLOAT, dims=weight.shape)
    tensor.data_location = TensorProto.EXTERNAL
    length = 4 * int(np.prod(weight.shape, dtype=np.int64))
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def fix_dimensions(proto: onnx.ModelProto, sizes: dict[str, int]) -> onnx.ModelProto:
    """A copy of a graph with symbolic dimensions given their sizes; nodes and weights stay as they are."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    for value in (*fixed.graph.input, *fixed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return fixed


def import_ort_domain(proto: onnx.ModelProto) -> None:
    """Have a graph know the operators that only ONNX Runtime has."""
    if all(opset.domain != ORT_DOMAIN for opset in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(ORT_DOMAIN, 1))
