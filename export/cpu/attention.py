"""Attention whose result does not depend on where a row's ancestors lie: in slots or among a pass's rows.

Sums over columns in float32 differ in their last digit with the order of the columns, and roundings of
activations to 8 bits make that a difference of whole rows. In float64 they differ nine digits further back,
which the conversion to float32 forgets. Products with a single row or column are summed by other kernels
than wider ones, hence rows and columns that are there twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

_LAST = "last_axis"
_TWICE = "width_twice"


class SteadyAttention:
    """Replaces the nodes of the decoder's attention one by one; `layers` counts those replaced."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.layers = 0
        self.constants = {_LAST: helper.make_tensor(_LAST, TensorProto.INT64, [1], [-1])}
        # Without groups a query head has as many rows as the pass.
        self._alone = any(
            node.op_type == "Identity" for node in graph.node if node.output[0] == "grouped_mask"
        )

    def node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """What stands for a node of the decoder's graph."""
        part = node.output[0].removeprefix("layers.").partition(".")[2]
        new = {
            "scores.cache": self._cached_scores,
            "scores.rows": self._new_scores,
            "probabilities": self._weights,
            "mix.cache": self._mix,
            "mix.rows": self._mix,
            "mix.stacked": self._sum,
        }.get(part)
        if node.output[0] == "width_shape":
            yield node
            yield _node("Concat", ["width_shape", "width_shape"], [_TWICE], axis=0)
        elif new is None:
            yield node
        else:
            self.layers += part == "mix.stacked"
            yield from new(node)

    def _cached_scores(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        (q, keys), y = node.input, node.output[0]
        if not self._alone:
            yield node
            return
        yield _node("Concat", [q, q], [q + ".twice"], axis=2)
        yield _node("MatMul", [q + ".twice", keys], [y + ".twice"])
        yield _node("Split", [y + ".twice", _TWICE], [y, y + ".again"], axis=2)

    def _new_scores(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        (q, keys), y = node.input, node.output[0]
        yield _node("Concat", [keys, keys], [y + ".keys"], axis=3)
        yield _node("MatMul", [q + ".twice" if self._alone else q, y + ".keys"], [y + ".twice"])
        wide = y + ".wide" if self._alone else y
        yield _node("Split", [y + ".twice", _TWICE], [wide, y + ".more"], axis=3)
        if self._alone:
            yield _node("Split", [wide, _TWICE], [y, y + ".again"], axis=2)

    def _weights(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Softmax without its division; exp of a score less the greatest is the same in any order."""
        scores, y = node.input[0], node.output[0]
        yield _node("ReduceMax", [scores, _LAST], [y + ".greatest"], keepdims=1)
        yield _node("Sub", [scores, y + ".greatest"], [y + ".exponents"])
        yield _node("Exp", [y + ".exponents"], [y + ".single"])
        yield _node("Cast", [y + ".single"], [y], to=TensorProto.DOUBLE)
        yield _node("ReduceSum", [y, _LAST], [y + ".total"], keepdims=1)

    def _mix(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        (weights, values), y = node.input, node.output[0]
        yield _node("Cast", [values], [y + ".values"], to=TensorProto.DOUBLE)
        yield _node("MatMul", [weights, y + ".values"], [y])

    def _sum(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        y = node.output[0]
        total = y.removesuffix("mix.stacked") + "probabilities.total"
        yield _node("Add", list(node.input), [y + ".unscaled"])
        yield _node("Div", [y + ".unscaled", total], [y + ".double"])
        yield _node("Cast", [y + ".double"], [y], to=TensorProto.FLOAT)


def _node(op: str, inputs: list[str], outputs: list[str], **attributes: int) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=outputs[0], **attributes)
