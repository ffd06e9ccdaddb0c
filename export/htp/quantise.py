"""Writes the static graph of one width with quantised weights and activations, as QDQ pairs HTP understands.

Only the products with weights are integer by default; norms, RoPE, attention and the residual stream stay in
fp16, because a residual with outliers has no 16-bit range that keeps its small channels. `integer` quantises
all of it, for chips without fp16.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hexgraft.export.htp.balance import find_balances
from hexgraft.export.htp.network import Network, Projection
from hexgraft.export.htp.precision import FLOAT, Precision
from hexgraft.export.htp.ranges import Ranges
from hexgraft.export.htp.ties import Ties
from hexgraft.export.htp.weights import QuantisedWeights, read_vector, row_scales, table_range
from hexgraft.models.graph import IR_VERSION


def quantise(
    network: Network,
    part: onnx.ModelProto,
    precision: Precision,
    ranges: Ranges,
    weights: QuantisedWeights,
) -> onnx.ModelProto:
    """`part` (a static graph of `network`, or a part of one) at `precision`, referring to the model's own
    weights file and to `weights`.

    Its inputs and outputs stay as they are. Raises ExportError where `ranges` and graph differ.
    """
    ranges.check(network.values())
    return _Writer(network, part, precision, ranges, weights).write()


class _Writer:
    def __init__(
        self,
        network: Network,
        part: onnx.ModelProto,
        precision: Precision,
        ranges: Ranges,
        weights: QuantisedWeights,
    ) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(part)
        self.network, self.precision, self.weights = network, precision, weights
        self.ranges = ranges.copy()  # an integer graph adds values of its own
        self.projections = {projection.node: projection for projection in network.projections()}
        self.ties = Ties(network.static(1).graph)
        self.integer_inputs = {
            projection.input
            for projection in self.projections.values()
            if precision.of(projection.weight) != FLOAT and not precision.block
        }
        self.balances = find_balances(network, precision, self.ranges)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, TensorProto] = {}
        self.paired: dict[str, str] = {}
        """Values that have a QDQ pair, and the name of its float end."""

    def write(self) -> onnx.ModelProto:
        graph = self.proto.graph
        for node in graph.node:
            if node.output[0] in self.balances:
                node = self._balanced(node)
            if node.name in self.projections and self._format(node) != FLOAT:
                self._projection(node, self.projections[node.name])
            elif node.op_type == "Gather" and self.precision.integer:
                self._integer_embedding(node)
            elif node.op_type == "Gather" and self.precision.of("embed") != FLOAT:
                self._embedding(node)
            elif self.precision.integer and node.op_type == "RotaryEmbedding":
                self._rotate(node)
            elif self.precision.integer or self._feeds_integers(node):
                self._integer(node)
            else:
                self.nodes.append(_copy(node))
        used = {name for node in self.nodes for name in node.input}
        known = [tensor for tensor in graph.initializer if tensor.name in used]
        fresh = [tensor for name, tensor in self.tensors.items() if name in used]
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend([*known, *fresh])
        self.proto.ir_version = IR_VERSION
        return self.proto

    def _balanced(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """The norm with the weights that undo the balance of the projection behind it."""
        copy = _copy(node)
        vector = read_vector(self.network, node.input[1]) / self.balances[node.output[0]]
        copy.input[1] = self._constant(f"{node.input[1]}:balanced", vector.astype(np.float32))
        return copy

    def _feeds_integers(self, node: onnx.NodeProto) -> bool:
        """Whether the node is a product, or joins two values, and only an integer projection reads it. HTP
        (QAIRT 2.51) computes such a node wrongly at 16 rows if it is fp16 itself, and right if it is
        integer."""
        return node.op_type in ("Mul", "Concat") and node.output[0] in self.integer_inputs

    def _format(self, node: onnx.NodeProto) -> str:
        return self.precision.of(self.projections[node.name].weight)

    def _node(self, op: str, inputs: Iterable[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def _constant(self, name: str, value: np.ndarray[Any, Any]) -> str:
        self.tensors.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def _pair(self, value: str) -> str:
        """The float end of the QDQ pair behind `value`, made when first asked for."""
        if value not in self.paired:
            self.paired[value] = self._quantised(value, value, f"{value}:real")
        return self.paired[value]

    def _quantised(self, value: str, raw: str, to: str) -> str:
        """A QDQ pair from `raw` to `to` with the range of `value`."""
        encoding = self.ranges.encoding(self.ties.group(value) if self.precision.integer else [value])
        scale = self._constant(f"{value}:scale", np.asarray(encoding.scale))
        zero = self._constant(f"{value}:zero", np.asarray(encoding.zero))
        stored = self._node("QuantizeLinear", [raw, scale, zero], f"{value}:stored")
        return self._node("DequantizeLinear", [stored, scale, zero], to)

    def _append(self, node: onnx.NodeProto) -> None:
        """Append `node` with a QDQ pair behind each float output, which keeps its name."""
        outputs = list(node.output)
        node.output[:] = [f"{value}:raw" for value in outputs]
        node.name = node.output[0]
        self.nodes.append(node)
        for value in outputs:
            self.paired[value] = self._quantised(value, f"{value}:raw", value)

    def _projection(self, node: onnx.NodeProto, projection: Projection) -> None:
        format = self.precision.of(projection.weight)
        block = self.precision.block
        balance = self.balances.get(projection.input)
        importance = self.ranges.squares.get(projection.weight) if block else None
        if importance is not None and balance is not None:
            importance = importance / np.square(balance)
        stored = self.weights.get(projection.initializer, format, projection.axis, block, importance, balance)
        for tensor in stored.tensors:
            self.tensors[tensor.name] = tensor
        attributes: dict[str, object] = {"axis": stored.axis}
        if stored.block:
            attributes["block_size"] = stored.block
        names = [tensor.name for tensor in stored.tensors]
        matrix = self._node("DequantizeLinear", names, f"{projection.weight}:real", **attributes)
        copy = _copy(node)
        copy.input[0], copy.input[1] = self._pair(projection.input), matrix
        self._append(copy)

    def _embedding(self, node: onnx.NodeProto) -> None:
        """Rows of 8-bit integers times a scale a row: a table has no use for one scale over all tokens."""
        table, ids = node.input
        stored = self.weights.get(table, "w8", 1, 0, None)
        # A name of its own for the same bytes: QNN keeps one encoding a tensor, and a tied head has another.
        integers = TensorProto()
        integers.CopyFrom(stored.tensors[0])
        integers.name = "embed:rows_of_integers"
        self.tensors[integers.name] = integers
        one = self._constant("embed:one", np.asarray(np.float32(1)))
        zero = self._constant("embed:zero", np.asarray(np.int8(0)))
        real = self._node("DequantizeLinear", [integers.name, one, zero], "embed:real")
        rows = self._node("Gather", [real, ids], "embed:rows")
        packed = self._node("QuantizeLinear", [rows, one, zero], "embed:rows:stored")
        rows = self._node("DequantizeLinear", [packed, one, zero], "embed:rows:real")
        scales = self._constant("embed:scales", row_scales(self.network, table))
        scale = self._node("Gather", [scales, ids], "embed:scale")
        self._node("Mul", [rows, scale], node.output[0])

    def _integer_embedding(self, node: onnx.NodeProto) -> None:
        """Rows of 16-bit integers of one encoding: integer chips multiply no gathered rows by scales."""
        table, ids = node.input
        self.ranges.widen(node.output[0], *table_range(self.network, table))
        encoding = self.ranges.encoding(self.ties.group(node.output[0]))
        stored = self.weights.table(table, encoding)
        self.tensors[stored.name] = stored
        scale = self._constant("embed:scale", np.asarray(encoding.scale))
        zero = self._constant("embed:zero", np.asarray(encoding.zero))
        real = self._node("DequantizeLinear", [stored.name, scale, zero], "embed:real")
        self._append(helper.make_node("Gather", [real, ids], [node.output[0]]))

    def _sixteen(self, name: str, numbers: np.ndarray[Any, Any]) -> str:
        """A constant as 16-bit integers behind a DequantizeLinear; returns the float end."""
        low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
        step = np.float32(max(high - low, 1e-6) / 65535)
        zero = np.uint16(np.clip(round(-low / float(step)), 0, 65535))
        stored = np.clip(np.rint(numbers / step) + zero, 0, 65535).astype(np.uint16)
        real = f"{name}:real"
        names = [
            self._constant(f"{name}:stored", stored),
            self._constant(f"{real}:step", np.asarray(step)),
            self._constant(f"{real}:zero", np.asarray(zero)),
        ]
        return self._node("DequantizeLinear", names, real)

    def _rotate(self, node: onnx.NodeProto) -> None:
        """RotaryEmbedding written out, which integer chips do not have: of each head (a, b) becomes
        (a cos - b sin, b cos + a sin)."""
        value, cos, sin = node.input
        heads = next(a.i for a in node.attribute if a.name == "num_heads")
        name, out = f"{node.name}:", node.output[0]
        reach = max(-min(self.ranges.low[value], 0.0), max(self.ranges.high[value], 0.0))
        by_head = self._constant(f"{name}heads", np.array([1, -1, heads, self.network.model.head_dim]))
        flat = self._constant(f"{name}flat", np.array([1, -1, heads * self.network.model.head_dim]))
        axis = self._constant("axis_2", np.array([2]))

        def step(
            op: str, inputs: list[str], outputs: list[str], like: str = "", **attributes: Any
        ) -> list[str]:
            for output in outputs:
                if like:
                    self.ranges.widen(output, self.ranges.low[like], self.ranges.high[like])
                else:
                    self.ranges.widen(output, -reach, reach)
            self._integer(helper.make_node(op, inputs, outputs, name=outputs[0], **attributes))
            return outputs

        tables = [
            step("Unsqueeze", [table, axis], [f"{name}{end}"], table)[0]
            for table, end in ((cos, "cos"), (sin, "sin"))
        ]
        heads_first = step("Reshape", [value, by_head], [f"{name}by_head"], value)
        half = self._constant(f"{name}half", np.array([self.network.model.head_dim // 2] * 2))
        a, b = step("Split", [*heads_first, half], [f"{name}a", f"{name}b"], value, axis=-1)
        turned = []
        for op, first, second, end in (("Sub", a, b, "first"), ("Add", b, a, "second")):
            (left,) = step("Mul", [first, tables[0]], [f"{name}{end}.cos"])
            (right,) = step("Mul", [second, tables[1]], [f"{name}{end}.sin"])
            turned += step(op, [left, right], [f"{name}{end}"], out)
        joined = step("Concat", turned, [f"{name}joined"], out, axis=-1)
        step("Reshape", [*joined, flat], [out], out)

    def _integer(self, node: onnx.NodeProto) -> None:
        """The node between QDQ pairs: the form in which HTP computes it in integers."""
        copy = _copy(node)
        for index, name in enumerate(node.input):
            tensor = self.tensors.get(name) or self.network.initializers.get(name)
            if tensor is None:
                produced = name in self.paired or name in self.ranges.low
                copy.input[index] = self._pair(name) if produced else name
            elif tensor.data_type == TensorProto.FLOAT:
                if name not in self.paired:
                    own = name in self.tensors
                    vector = numpy_helper.to_array(tensor) if own else read_vector(self.network, name)
                    self.paired[name] = self._sixteen(name, vector)
                copy.input[index] = self.paired[name]
        self._append(copy)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
