"""Queries, keys and values turned head by head at once, before RoPE: fewer and smaller nodes a layer.

The decoder's graph, which is the NPU's too, turns each of the three by itself, behind RoPE. The numbers are
the same bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_ALL = "all_heads"
_ROTATED = "rotated_heads_and_values"
_QUERIES = "queries_and_keys"


class HeadsFirst:
    """Replaces the nodes that cut the product of a layer into heads, one by one."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        _, kv_heads, group, size = numpy_helper.to_array(
            next(tensor for tensor in graph.initializer if tensor.name == "q_heads")
        ).tolist()
        heads = kv_heads * group
        self.constants = _constants(
            {
                _ALL: [1, -1, heads + 2 * kv_heads, size],
                _ROTATED: [heads + kv_heads, kv_heads],
                _QUERIES: [heads, kv_heads],
            }
        )
        self._same: dict[str, str] = {}

    def node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """What stands for a node of the decoder's graph."""
        name = node.output[0]
        layer, _, part = name.removeprefix("layers.").partition(".")
        layer = f"layers.{layer}."
        inputs = [self._same.get(value, value) for value in node.input]
        if part == "qk":
            yield _node("Reshape", [inputs[0], _ALL], [layer + "qkv.heads"])
            yield _node("Transpose", [layer + "qkv.heads"], [layer + "qkv.by_head"], perm=[0, 2, 1, 3])
            yield _node("Split", [layer + "qkv.by_head", _ROTATED], list(node.output), axis=1)
        elif part == "q":
            yield _node("Reshape", inputs, [name])
        elif part in ("qk.heads", "qk.normed", "q.heads", "q.by_head", "k.heads", "v.heads"):
            self._same[name] = inputs[0]
        elif part in ("q.unnormed", "q.rows"):
            yield _node("Split", [inputs[0], _QUERIES], list(node.output), axis=1)
        elif part == "qk.normed.heads":
            yield _node("Concat", inputs, [name], axis=1)
        elif part == "qk.rotated":
            yield _node("RotaryEmbedding", inputs, [name], interleaved=0)
        elif name.startswith("past_key_"):
            yield _node("Transpose", inputs, [name], perm=[1, 0, 3, 2])
        elif name.startswith("past_value_"):
            yield _node("Transpose", inputs, [name], perm=[1, 0, 2, 3])
        else:
            yield node


def _constants(values: Mapping[str, list[int]]) -> dict[str, TensorProto]:
    return {name: numpy_helper.from_array(np.array(value, np.int64), name) for name, value in values.items()}


def _node(op: str, inputs: list[str], outputs: list[str], **attributes: int | list[int]) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=outputs[0], **attributes)
