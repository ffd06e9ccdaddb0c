"""What the NPU path needs to know of a bundle's graph: its float values, its projections, where weights
lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from hexgraft.export.static import static_name
from hexgraft.host.bundle import Bundle
from hexgraft.models.decoder import dimensions
from hexgraft.models.graph import fix_dimensions

SHAPE_VALUES = ("capacity_shape", "width_shape", "cache_and_rows")
"""Values the symbolic graph computes from shapes; numbers in a static one."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A product with a weight. `axis` is the summed axis of the stored matrix: 0 for MatMul, 1 for Gemm."""

    node: str
    weight: str
    initializer: str
    input: str
    output: str
    axis: int


class Network:
    """The symbolic graph of one model of a bundle, and its float32 weights as they lie on disk."""

    def __init__(self, bundle: Bundle, role: str) -> None:
        self.role = role
        self.model = bundle.model(role)
        self.file = bundle.file(bundle.graph(role, "cpu").file)
        self.folder: Path = self.file.parent
        self.proto = onnx.load(self.file, load_external_data=False)
        self.initializers = {tensor.name: tensor for tensor in self.proto.graph.initializer}

    def projections(self) -> Iterator[Projection]:
        """Every product with a weight, in graph order. A tied head is "head", whatever its matrix is
        called."""
        for node in self.proto.graph.node:
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in self.initializers:
                weight = "head" if node.op_type == "Gemm" else node.input[1]
                axis = 1 if node.op_type == "Gemm" else 0
                yield Projection(node.name, weight, node.input[1], node.input[0], node.output[0], axis)

    def matrix_sizes(self, bits: Callable[[str], int]) -> tuple[list[int], int]:
        """Bytes of each layer's matrices and of the head's, with so many bits a number of a weight by its
        name. What is of no layer (of a draft head, the product that mixes its inputs) is in the first."""
        layers, head = [0] * self.model.layers, 0
        for projection in self.projections():
            rows, columns = self.initializers[projection.initializer].dims
            size = rows * columns * bits(projection.weight) // 8
            if projection.weight == "head":
                head = size
            else:
                _, _, rest = projection.weight.partition("layers.")
                layers[int(rest.partition(".")[0] or 0)] += size
        return layers, head

    def values(self) -> list[str]:
        """Names of all float values, inputs and outputs included."""
        names = [value.name for value in self.proto.graph.input if value.name != "input_ids"]
        names += [out for node in self.proto.graph.node for out in node.output if out not in SHAPE_VALUES]
        return names

    def static(self, width: int, capacity: int | None = None) -> onnx.ModelProto:
        """The graph of one width over `capacity` slots (None: the whole context), shapes folded into
        numbers."""
        capacity = capacity or self.model.context
        proto = fix_dimensions(self.proto, dimensions(width, capacity))
        proto.graph.name = static_name(self.role, width, capacity)
        nodes = [node for node in proto.graph.node if not set(node.output) & set(SHAPE_VALUES)]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        proto.graph.initializer.append(numpy_helper.from_array(_int64(capacity, width), "cache_and_rows"))
        return proto

    def parameters(self) -> int:
        """Weights in all, a tied head counted once."""
        return self.model.parameters


def _int64(*values: int):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.array(values, np.int64)


def external(tensor: TensorProto) -> tuple[str, int, int] | None:
    """(file, offset, length) of an initializer's bytes, None if they are inline."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "location" not in entries:
        return None
    return entries["location"], int(entries.get("offset", 0)), int(entries["length"])


def external_tensor(
    name: str, data_type: int, dims: tuple[int, ...], location: str, offset: int, length: int
) -> TensorProto:
    tensor = TensorProto(name=name, data_type=data_type, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


__all__ = ["Network", "Projection", "external", "external_tensor", "helper"]
