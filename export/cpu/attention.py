"""Attention whose result does not depend on where a row's ancestors lie: in slots or among a pass's rows.

Sums over columns in float32 differ in their last digit with the order of the columns, and roundings of
activations to 8 bits make that a difference of whole rows. In float64 they differ nine digits further back,
which the conversion to float32 forgets. Products with a single row or column are summed by other kernels
than wider ones, hence rows that are there twice, and a column behind all others that nothing sees.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LAST = "last_axis"
_TWICE = "width_twice"
_NO_KEY = "no_key"
_ONE_COLUMN = "one_column"
_MASK_PADS = "mask_pads"
_UNSEEN = "unseen"
_HIDE = -1e30
"""Far below what the mask hides by, so that no row of hidden columns alone sees this one."""


class SteadyAttention:
    """Replaces the nodes of the decoder's attention one by one; `layers` counts those replaced."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.layers = 0
        keys = next(value for value in graph.input if value.name == "past_key_0_in").type.tensor_type.shape
        no_key = np.zeros((keys.dim[0].dim_value, 1, keys.dim[2].dim_value, 1), np.float32)
        self.constants = {
            name: numpy_helper.from_array(value, name)
            for name, value in {
                _LAST: np.array([-1], np.int64),
                _NO_KEY: no_key,
                _ONE_COLUMN: np.array([1], np.int64),
                _MASK_PADS: np.array([0, 0, 0, 0, 0, 0, 0, 1], np.int64),
                _UNSEEN: np.array(_HIDE, np.float32),
            }.items()
        }
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
            "probabilities.cache": self._cut,
            "mix.cache": self._mix,
            "mix.rows": self._mix,
            "mix.stacked": self._sum,
        }.get(part)
        if node.output[0] == "width_shape":
            yield node
            yield _node("Concat", ["width_shape", "width_shape"], [_TWICE], axis=0)
        elif node.output[0] in ("grouped_mask", "grouped_mask_local"):
            yield from self._mask(node)
        elif node.output[0] == "cache_and_rows":
            yield _node("Concat", [*node.input, _ONE_COLUMN], [node.output[0]], axis=0)
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

    def _mask(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The mask of the columns that are there, and of the one that nothing sees."""
        mask, columns = node.output[0], node.output[0] + ".columns"
        yield helper.make_node(node.op_type, node.input, [columns], name=columns, **_attributes(node))
        yield _node("Pad", [columns, _MASK_PADS, _UNSEEN], [mask])

    def _new_scores(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        (q, keys), y = node.input, node.output[0]
        yield _node("Concat", [keys, _NO_KEY], [y + ".keys"], axis=3)
        if not self._alone:
            yield _node("MatMul", [q, y + ".keys"], [y])
            return
        yield _node("MatMul", [q + ".twice", y + ".keys"], [y + ".twice"])
        yield _node("Split", [y + ".twice", _TWICE], [y, y + ".again"], axis=2)

    def _weights(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Softmax without its division; exp of a score less the greatest is the same in any order."""
        scores, y = node.input[0], node.output[0]
        yield _node("ReduceMax", [scores, _LAST], [y + ".greatest"], keepdims=1)
        yield _node("Sub", [scores, y + ".greatest"], [y + ".exponents"])
        yield _node("Exp", [y + ".exponents"], [y + ".single"])
        yield _node("Cast", [y + ".single"], [y], to=TensorProto.DOUBLE)
        yield _node("ReduceSum", [y, _LAST], [y + ".total"], keepdims=1)

    def _cut(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        cache, rows = node.output
        yield _node("Split", list(node.input), [cache, rows, cache + ".none"], axis=-1)

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


def _attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
