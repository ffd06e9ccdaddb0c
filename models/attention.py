"""Attention over the cache and a pass's rows, made of plain operators, as two score blocks joined before
softmax.

The cache is never concatenated with the new rows, so no pass copies it.
"""

from __future__ import annotations

from hexgraft.models.config import ModelConfig
from hexgraft.models.graph import GraphBuilder

WIDTH = "width"
CAPACITY = "capacity"
COLUMNS = "capacity_plus_width"

STACKED, CHOSEN, FUSED = "stacked", "chosen", "fused"
"""How a graph's attention is made: of plain operators with stacks of query heads, as the NPU's graphs are; of
those with stacks chosen at each pass; or as one operator a layer, of the CPU provider's own."""

SHORT = 1536
"""Cache slots times query heads a key/value head up to which a product for each of these is faster than one
for all, as measured on SmolLM2 with one thread and two."""


class SplitAttention:
    """Adds its nodes to `graph`. The query heads that share a key/value head are `stacked` as rows of one
    product, as the NPU's graphs are made. Otherwise each pass chooses, by its shapes: products of a single
    row read the cache as it lies, where those of several copy it first, and a short cache is cheap to copy
    for every head."""

    def __init__(self, config: ModelConfig, graph: GraphBuilder, *, stacked: bool) -> None:
        self.config, self.graph, self.stacked = config, graph, stacked

    def cache(self) -> None:
        """The cache's inputs, and outputs of the rows of this pass only."""
        c, g = self.config, self.graph
        for i in range(c.layers):
            g.input(f"past_key_{i}_in", (c.kv_heads, 1, c.head_dim, CAPACITY))
            g.input(f"past_value_{i}_in", (c.kv_heads, 1, CAPACITY, c.head_dim))
        for i in range(c.layers):
            g.output(f"past_key_{i}_out", (c.kv_heads, 1, c.head_dim, WIDTH))
            g.output(f"past_value_{i}_out", (c.kv_heads, 1, WIDTH, c.head_dim))

    def prologue(self) -> None:
        """What every layer shares: the mask once per query of a stack."""
        g, group = self.graph, self.config.group
        key_shape = g.node("Shape", ["past_key_0_in"], "capacity_shape", start=3, end=4)
        width_shape = g.node("Shape", ["input_ids"], "width_shape", start=1, end=2)
        g.node("Concat", [key_shape, width_shape], "cache_and_rows", axis=0)
        # Query rows of one key/value head are stacked group by group, [group * T], so the mask repeats
        # likewise.
        masks = {"grouped_mask": "attention_mask"}
        if self.config.window is not None:
            masks["grouped_mask_local"] = "attention_mask_local"
        if not self.stacked and group > 1:
            self._choose_stacks(key_shape, width_shape)
        for grouped, one in masks.items():
            if group == 1:
                g.node("Identity", [one], grouped)
            elif self.stacked:
                g.node("Concat", [one] * group, grouped, axis=2)
            else:
                stacked = g.node("Concat", [one] * group, grouped + ".stacked", axis=2)
                g.node("Reshape", [stacked, "mask_stacks"], grouped)

    def _choose_stacks(self, capacity: str, width: str) -> None:
        """The shapes of queries, [kv_heads, S, rows, head_dim], and mask, [1, S, rows, columns], of this
        pass: S is 1, or the group where its heads stand side by side."""
        c, g = self.config, self.graph
        single = g.node("Equal", [width, g.constant("single_row", [1])], "is_single")
        short = g.node("LessOrEqual", [capacity, g.constant("short", [SHORT // c.group])], "is_short")
        apart = g.node("Or", [single, short], "is_apart")
        for name, first, last in (("q", c.kv_heads, c.head_dim), ("mask", 1, 0)):
            shapes = [g.constant(f"{name}_of_{s}", [first, s, -1, last]) for s in (c.group, 1)]
            g.node("Where", [apart, *shapes], f"{name}_stacks")

    def layer(self, i: int, q: str, k: str, v: str, *, local: bool) -> str:
        """What the rows attend to, [1,T,heads * head_dim], of queries [1,T,heads * head_dim], keys and values
        [1,T,kv_heads * head_dim]; through a window where `local`."""
        c, g, layer = self.config, self.graph, f"layers.{i}."
        q = g.node(
            "Reshape", [q, g.constant("q_heads", [-1, c.kv_heads, c.group, c.head_dim])], layer + "q.heads"
        )
        q = g.node("Transpose", [q], layer + "q.by_head", perm=[1, 2, 0, 3])
        stacks = (
            g.constant("q_stacked", [c.kv_heads, 1, -1, c.head_dim])
            if self.stacked or c.group == 1
            else "q_stacks"
        )
        q = g.node("Reshape", [q, stacks], layer + "q")
        kv_heads = g.constant("kv_heads", [-1, c.kv_heads, 1, c.head_dim])
        k = g.node("Reshape", [k, kv_heads], layer + "k.heads")
        k = g.node("Transpose", [k], f"past_key_{i}_out", perm=[1, 2, 3, 0])
        v = g.node("Reshape", [v, kv_heads], layer + "v.heads")
        v = g.node("Transpose", [v], f"past_value_{i}_out", perm=[1, 2, 0, 3])

        past = g.node("MatMul", [q, f"past_key_{i}_in"], layer + "scores.cache")
        rows = g.node("MatMul", [q, k], layer + "scores.rows")
        scores = g.node("Concat", [past, rows], layer + "scores", axis=-1)
        if c.attention_softcap is not None:
            scores = g.node("Tanh", [scores], layer + "scores.tanh")
            scores = g.node(
                "Mul", [scores, g.scalar("attention_softcap", c.attention_softcap)], layer + "scores.capped"
            )
        mask = "grouped_mask_local" if local else "grouped_mask"
        scores = g.node("Add", [scores, mask], layer + "scores.masked")
        probabilities = g.node("Softmax", [scores], layer + "probabilities", axis=-1)
        p_past, p_rows = g.nodes(
            "Split",
            [probabilities, "cache_and_rows"],
            [layer + "probabilities.cache", layer + "probabilities.rows"],
            axis=-1,
        )
        y_past = g.node("MatMul", [p_past, f"past_value_{i}_in"], layer + "mix.cache")
        y_rows = g.node("MatMul", [p_rows, v], layer + "mix.rows")
        y = g.node("Add", [y_past, y_rows], layer + "mix.stacked")
        y = g.node(
            "Reshape",
            [y, g.constant("mix_heads", [c.kv_heads, c.group, -1, c.head_dim])],
            layer + "mix.heads",
        )
        y = g.node("Transpose", [y], layer + "mix.by_row", perm=[2, 0, 1, 3])
        flat = g.constant("mix_flat", [1, -1, c.heads * c.head_dim])
        return g.node("Reshape", [y, flat], layer + "mix")
