"""Rewrites the decoder's graph so that its matrices are multiplied as they are packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hexgraft.export.cpu.attention import SteadyAttention
from hexgraft.export.cpu.heads import HeadsFirst
from hexgraft.export.cpu.packing import Packing
from hexgraft.export.cpu.source import has_minima
from hexgraft.export.weights import Tensors
from hexgraft.models.errors import ExportError
from hexgraft.models.fused_attention import is_fused
from hexgraft.models.gguf_blocks import BLOCK
from hexgraft.models.graph import ORT_DOMAIN, Graph, Weight, import_ort_domain

PACKED = ("w8", "w4", "w8a8", "w4a8", "w4h4a8")
PRECISIONS = ("fp32", *PACKED)
"""Of the CPU's graph: fp32, blocks of 8 bits, or blocks of 4 bits with 8 in embedding and head, or with 4
there, too (h4); with a8, activations are rounded to 8 bits in blocks."""

_FLOAT, _ROUNDED = 1, 4
"""Accuracy levels of MatMulNBits: activations as they are, or each block of a row rounded to 8 bits."""


@dataclass(frozen=True, slots=True)
class PackedGraph(Graph):
    """A graph some of whose weights, by name, lie packed."""

    packings: Mapping[str, Packing]

    @property
    def weights_size(self) -> int:
        return self.offsets[-1] + self.stored_bytes(self.weights[-1])

    def stored_bytes(self, weight: Weight) -> int:
        packing = self.packings.get(weight.name)
        return packing.nbytes if packing else weight.nbytes


def packing_of(weight: Weight, checkpoint: Tensors | None, precision: str) -> Packing | None:
    """How a weight is stored; None for vectors, which stay float32. Without a checkpoint, as of one whose
    numbers are not in blocks yet. Raises ExportError where blocks do not fit."""
    if len(weight.shape) != 2:
        return None
    out, inner = weight.shape[::-1] if weight.transposed else weight.shape
    if inner % BLOCK:
        raise ExportError(
            f"{precision} on the CPU takes blocks of {BLOCK} inputs, {weight.name} has {inner}",
            "leave out --cpu-precision",
        )
    spared = weight.name in ("embed", "head") and "h4" not in precision
    bits = 8 if precision.startswith("w8") or spared else 4
    # A gather of rows knows zero points, but no rests.
    rests = (
        checkpoint is not None
        and weight.name != "embed"
        and any(has_minima(checkpoint, part.tensor, bits) for part in weight.parts)
    )
    return Packing(out, inner, bits, precision.endswith("a8"), rests)


def packed_size(graph: Graph, precision: str) -> int:
    """Bytes of the weights file at a precision, of a checkpoint whose numbers are not in blocks yet; 0 if
    they do not fit in blocks."""
    try:
        return pack(graph, None, precision, steady=False).weights_size
    except ExportError:
        return 0


def pack(graph: Graph, checkpoint: Tensors | None, precision: str, *, steady: bool) -> PackedGraph:
    """The same graph with every matrix of its own packed: MatMul and Gemm become MatMulNBits, the embedding's
    Gather GatherBlockQuantized.

    Among rounded activations a `steady` one gives equal bits at every width, for which its attention pays.
    """
    packings, offsets, offset = {}, [], 0
    for weight in graph.weights:
        packing = packing_of(weight, checkpoint, precision)
        if packing is not None:
            packings[weight.name] = packing
        offsets.append(offset)
        size = packing.nbytes if packing is not None else weight.nbytes
        offset = -(-(offset + size) // 4096) * 4096
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    rewriter = _Rewriter(packings)
    nodes = [new for node in _rows_kept(graph.proto.graph.node) for new in rewriter.node(node)]
    if not is_fused(graph.proto.graph):
        heads = HeadsFirst(graph.proto.graph)
        nodes = [new for node in nodes for new in heads.node(node)]
        rewriter.constants |= heads.constants
    if steady and precision.endswith("a8"):
        attention = SteadyAttention(graph.proto.graph)
        nodes = [new for node in nodes for new in attention.node(node)]
        rewriter.constants |= attention.constants
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    del proto.graph.initializer[:]
    places = dict(zip((weight.name for weight in graph.weights), offsets, strict=True))
    for tensor in graph.proto.graph.initializer:
        if tensor.name in packings:
            proto.graph.initializer.extend(
                _tensors(tensor.name, packings[tensor.name], graph.weights_file, places[tensor.name])
            )
        else:
            proto.graph.initializer.append(tensor)
            if tensor.name in places:
                _move(proto.graph.initializer[-1], places[tensor.name])
    for name in {node.input[0] for node in nodes if node.op_type == "GatherBlockQuantized"}:
        proto.graph.initializer.append(_rows(name, packings, graph.weights_file, places))
    proto.graph.initializer.extend(rewriter.constants.values())
    import_ort_domain(proto)
    return PackedGraph(proto, graph.weights, tuple(offsets), graph.weights_file, packings)


def _rows_kept(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes without the two that flatten the rows for the head's Gemm and cut the logits up again, which
    copies them all: its packed product takes rows as they are."""
    kept = [node for node in nodes if node.output[0] not in ("norm.rows", "logits")]
    dropped = {node.output[0]: node.input[0] for node in nodes if node.output[0] in ("norm.rows", "logits")}
    names = {"norm.rows": dropped["norm.rows"], dropped["logits"]: "logits"}
    for node in kept:
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[:] = [names.get(name, name) for name in node.input]
        new.output[:] = [names.get(name, name) for name in node.output]
        new.name = new.output[0]
        yield new


class _Rewriter:
    """New nodes for old ones; values that several products share are made once."""

    def __init__(self, packings: Mapping[str, Packing]) -> None:
        self.packings = packings
        self.constants: dict[str, TensorProto] = {}
        self._made: set[str] = set()

    def node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        matrix = next((name for name in node.input if name in self.packings), None)
        if matrix is None:
            yield node
        elif node.op_type == "Gather":
            yield from self._gather(node, matrix)
        else:
            yield from self._product(node.input[0], matrix, node.output[0])

    def _product(self, x: str, matrix: str, y: str) -> Iterator[onnx.NodeProto]:
        packing = self.packings[matrix]
        read, product, stored = x, y, packing.tensors()
        if packing.rests:
            yield from self._sums(x, packing)
        if packing.planes > 1 or packing.sums:
            read = x + ".read"
            inputs = [x] * packing.planes
            missing = packing.sums - packing.inner // BLOCK if packing.sums else 0
            yield from self._zeros(missing)
            if packing.sums:
                inputs += [x + ".sums", *([f"zeros_{missing}"] if missing else [])] * 2
            yield from self._once("Concat", inputs, read, axis=-1)
        if "rests" in stored:
            product = y + ".blocks"
        yield helper.make_node(
            "MatMulNBits",
            [read, *(f"{matrix}.{part}" for part in ("blocks", "scales", "zeros") if part in stored)],
            [product],
            name=product,
            domain=ORT_DOMAIN,
            K=packing.width,
            N=packing.out,
            bits=packing.stored_bits,
            block_size=BLOCK,
            accuracy_level=_ROUNDED if packing.rounded else _FLOAT,
        )
        if "rests" in stored:
            rests = y + ".rests"
            yield helper.make_node("MatMul", [x + ".sums", matrix + ".rests"], [rests], name=rests)
            yield helper.make_node("Add", [product, rests], [y], name=y)

    def _gather(self, node: onnx.NodeProto, matrix: str) -> Iterator[onnx.NodeProto]:
        packing, y = self.packings[matrix], node.output[0]
        gathered = y + ".planes" if packing.planes > 1 else y
        inputs = [matrix + ".rows", node.input[1], matrix + ".scales"]
        yield helper.make_node(
            "GatherBlockQuantized",
            [*inputs, matrix + ".zeros"] if "zeros" in packing.tensors() else inputs,
            [gathered],
            name=gathered,
            domain=ORT_DOMAIN,
            gather_axis=0,
            quantize_axis=1,
            block_size=BLOCK,
            bits=packing.stored_bits,
        )
        if packing.planes == 1:
            return
        self._constant("planes", np.array([packing.inner] * packing.planes, np.int64))
        planes = [f"{y}.plane_{i}" for i in range(packing.planes)]
        yield helper.make_node("Split", [y + ".planes", "planes"], planes, name=planes[0], axis=-1)
        yield helper.make_node("Add", planes, [y], name=y)

    def _once(self, op: str, inputs: list[str], output: str, **attributes: int) -> Iterator[onnx.NodeProto]:
        if output not in self._made:
            self._made.add(output)
            yield helper.make_node(op, inputs, [output], name=output, **attributes)

    def _sums(self, x: str, packing: Packing) -> Iterator[onnx.NodeProto]:
        """The sum of every block of every row: what a block adds to its weights is multiplied by it."""
        blocks = packing.inner // BLOCK
        shape = self._constant(f"cut_{blocks}", np.array([1, -1, blocks, BLOCK], np.int64))
        yield from self._once("Reshape", [x, shape], x + ".cut")
        axis = self._constant("within_block", np.array([3], np.int64))
        yield from self._once("ReduceSum", [x + ".cut", axis], x + ".sums", keepdims=0)

    def _zeros(self, count: int) -> Iterator[onnx.NodeProto]:
        """`count` columns of zeros, which fill sums up to whole blocks, made once a pass."""
        if count:
            zeros = f"zeros_{count}"
            one = self._constant("one", np.array([1], np.int64))
            columns = self._constant(f"columns_{count}", np.array([count], np.int64))
            yield from self._once("Concat", [one, "width_shape", columns], zeros + ".shape", axis=0)
            yield from self._once("ConstantOfShape", [zeros + ".shape"], zeros)

    def _constant(self, name: str, value: np.typing.NDArray[np.generic]) -> str:
        self.constants[name] = numpy_helper.from_array(value, name)
        return name


def _tensors(name: str, packing: Packing, file: str, start: int) -> list[TensorProto]:
    places = packing.places()
    return [
        _external(f"{name}.{part}", kind, shape, file, start + places[part][0], places[part][1])
        for part, (kind, shape) in packing.tensors().items()
    ]


def _rows(rows: str, packings: Mapping[str, Packing], file: str, places: Mapping[str, int]) -> TensorProto:
    """The blocks of an embedding once more under the shape that a gather wants: the same bytes."""
    matrix = rows.removesuffix(".rows")
    packing = packings[matrix]
    kind, shape = packing.tensors()["blocks"]
    offset, length = packing.places()["blocks"]
    return _external(rows, kind, (shape[0], shape[1] * shape[2]), file, places[matrix] + offset, length)


def _external(
    name: str, kind: int, shape: tuple[int, ...], location: str, offset: int, length: int
) -> TensorProto:
    tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _move(tensor: TensorProto, offset: int) -> None:
    for entry in tensor.external_data:
        if entry.key == "offset":
            entry.value = str(offset)
