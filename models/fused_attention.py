"""Attention as one operator a layer, for ONNX Runtime's CPU provider: GroupQueryAttention of its domain.

The operator wants keys and values slot by slot, and writes the rows of a pass behind the cache's slots, into
the buffer it reads: where input and output are bound to the same memory, no pass copies anything.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from hexgraft.models.config import ModelConfig
from hexgraft.models.errors import ExportError
from hexgraft.models.graph import ORT_DOMAIN, GraphBuilder

SLOTS = "slots"
"""Rows of a layer's buffer: C of the cache, and room behind them for those of the widest pass."""


def is_fused(graph: onnx.GraphProto) -> bool:
    """Whether a decoder's attention is fused."""
    return any(node.op_type == "GroupQueryAttention" for node in graph.node)


class FusedAttention:
    """Adds its nodes to `graph`; the same interface as `SplitAttention`'s.

    Among the rows of a pass the operator hides all later ones, whatever the mask says: parents come before
    their children.
    """

    def __init__(self, config: ModelConfig, graph: GraphBuilder) -> None:
        """Raises ExportError where the operator does not take heads of this size."""
        if config.head_dim % 8:
            raise ExportError(
                f"fused attention takes heads whose size is a multiple of 8, here it is {config.head_dim}",
                "leave out --cpu-attention fused",
            )
        self.config, self.graph = config, graph

    def cache(self) -> None:
        """Buffers of the cache and the pass's rows, in and out."""
        c, g = self.config, self.graph
        names = [f"past_{part}_{i}" for i in range(c.layers) for part in ("key", "value")]
        for name in names:
            g.input(name + "_in", (1, c.kv_heads, SLOTS, c.head_dim))
        for name in names:
            g.output(name + "_out", (1, c.kv_heads, SLOTS, c.head_dim))

    def prologue(self) -> None:
        """What every layer shares: how many columns there are, which is where the rows of the pass end."""
        g = self.graph
        g.node("Shape", ["input_ids"], "width_shape", start=1, end=2)
        shape = g.node("Shape", ["attention_mask"], "columns_shape", start=3, end=4)
        columns = g.node("Cast", [shape], "columns_vector", to=TensorProto.INT32)
        g.node("Sub", [columns, g.constant("one_int32", np.array([1], np.int32))], "last_column")
        g.node("Squeeze", [columns], "columns")

    def layer(self, i: int, q: str, k: str, v: str, *, local: bool) -> str:
        """As `SplitAttention.layer`."""
        c = self.config
        # Queries come out divided by the softcap, which the operator does itself.
        capped = {} if c.attention_softcap is None else {"softcap": c.attention_softcap}
        cache = [f"past_{part}_{i}" for part in ("key", "value")]
        mask = "attention_mask_local" if local else "attention_mask"
        (y, *_) = self.graph.nodes(
            "GroupQueryAttention",
            [q, k, v, *(name + "_in" for name in cache), "last_column", "columns", "", "", "", mask],
            [f"layers.{i}.mix", *(name + "_out" for name in cache)],
            domain=ORT_DOMAIN,
            num_heads=c.heads,
            kv_num_heads=c.kv_heads,
            scale=c.attention_softcap or 1.0,
            **capped,
        )
        return y
