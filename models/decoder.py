"""The decoder, written once as an ONNX graph with a free tree mask; a family is a config, never a copy of
this file.

The graph knows nothing of trees: slots, positions and visibility reach it as three separate inputs (cache
rows, RoPE tables, mask), none derived from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnx import TensorProto

from hexgraft.models.config import ModelConfig
from hexgraft.models.graph import Graph, GraphBuilder, Part, Weight

WIDTH = "width"
CAPACITY = "capacity"
COLUMNS = "capacity_plus_width"

SHORT = 1536
"""Cache slots times query heads a key/value head up to which a product for each of these is faster than one
for all, as measured on SmolLM2 with one thread and two."""


def dimensions(width: int, capacity: int) -> dict[str, int]:
    """Sizes of the graph's symbolic dimensions, for `fix_dimensions` or a runtime's free-dimension
    overrides."""
    return {WIDTH: width, CAPACITY: capacity, COLUMNS: capacity + width}


def build_decoder(
    config: ModelConfig,
    weights_file: str,
    *,
    name: str,
    features: Sequence[int] = (),
    stacked: bool = True,
) -> Graph:
    """Build the graph for `config` with symbolic width T and cache capacity C.

    Inputs: input_ids [1,T] int32; attention_mask [1,1,T,C+T] additive; position_ids_cos/_sin
    [1,1,T,head_dim/2]; per layer past_key_{i}_in [kv_heads,1,head_dim,C] (after RoPE) and past_value_{i}_in
    [kv_heads,1,C,head_dim]. Outputs: logits [1,T,vocab]; per layer past_key_{i}_out [kv_heads,1,head_dim,T]
    and past_value_{i}_out [kv_heads,1,T,head_dim], the rows of this pass only; with `features` also hidden
    [1,T,len(features)*d], the residual stream after so many layers each, side by side, where the number of
    all layers stands for the state after the last norm. Names and shapes follow Qualcomm AI Hub's LLM
    exports. A config with a window adds the input attention_mask_local, one with a local RoPE
    position_ids_cos_local and _sin_local, in the shapes of their namesakes.

    The query heads that share a key/value head are `stacked` as rows of one product, as the NPU's graphs are
    made. Otherwise each pass chooses, by its shapes: products of a single row read the cache as it lies,
    where those of several copy it first, and a short cache is cheap to copy for every head.
    """
    return DecoderBuilder(config, name, stacked=stacked).build(weights_file, features)


class DecoderBuilder:
    """Builds a decoder's graph piece by piece; a draft head is made of the same pieces."""

    def __init__(self, config: ModelConfig, name: str, *, stacked: bool = True) -> None:
        self.config, self.stacked = config, stacked
        self.graph = GraphBuilder(name)

    def build(self, weights_file: str, features: Sequence[int]) -> Graph:
        c, g = self.config, self.graph
        x = self._embedded(self._inputs(c.vocab))
        states = []
        for i in range(c.layers):
            states.append(x)
            x = self._attention(i, x)
            x = self._ffn(i, x)
        normed = self._norm("norm", x)
        if features:
            wanted = [[*states, normed][layer] for layer in features]
            g.output("hidden", (1, WIDTH, len(wanted) * c.hidden))
            g.node("Concat", wanted, "hidden", axis=-1)
        matrix = "embed" if c.tied else g.weight(Weight("head", (c.vocab, c.hidden), (Part("head"),)))
        self._head(normed, matrix, c.vocab)
        return g.build(weights_file)

    def _inputs(self, rows: int) -> str:
        """All inputs, and the outputs but `hidden`; `rows` logits come out. Returns the tokens' name."""
        c, g = self.config, self.graph
        ids = g.input("input_ids", (1, WIDTH), TensorProto.INT32)
        mask = g.input("attention_mask", (1, 1, WIDTH, COLUMNS))
        g.input("position_ids_cos", (1, 1, WIDTH, c.head_dim // 2))
        g.input("position_ids_sin", (1, 1, WIDTH, c.head_dim // 2))
        if c.window is not None:
            g.input("attention_mask_local", (1, 1, WIDTH, COLUMNS))
        if c.local_rope is not None:
            g.input("position_ids_cos_local", (1, 1, WIDTH, c.head_dim // 2))
            g.input("position_ids_sin_local", (1, 1, WIDTH, c.head_dim // 2))
        for i in range(c.layers):
            g.input(f"past_key_{i}_in", (c.kv_heads, 1, c.head_dim, CAPACITY))
            g.input(f"past_value_{i}_in", (c.kv_heads, 1, CAPACITY, c.head_dim))
        g.output("logits", (1, WIDTH, rows))
        for i in range(c.layers):
            g.output(f"past_key_{i}_out", (c.kv_heads, 1, c.head_dim, WIDTH))
            g.output(f"past_value_{i}_out", (c.kv_heads, 1, WIDTH, c.head_dim))
        self._prologue(mask)
        return ids

    def _embedded(self, ids: str) -> str:
        c, g = self.config, self.graph
        embed = g.weight(Weight("embed", (c.vocab, c.hidden), (Part("embed"),)))
        x = g.node("Gather", [embed, ids], "embedded")
        if c.embedding_scale != 1.0:
            x = g.node("Mul", [x, g.scalar("embedding_scale", c.embedding_scale)], "embedded.scaled")
        return x

    def _prologue(self, mask: str) -> None:
        """What every layer shares: RoPE tables as the operator wants them, the mask once per query of a
        stack."""
        g, group = self.graph, self.config.group
        tables = (
            ("cos", "sin") if self.config.local_rope is None else ("cos", "sin", "cos_local", "sin_local")
        )
        for table in tables:
            g.node("Squeeze", [f"position_ids_{table}", g.constant("axis_1", [1])], f"rope_{table}")
        key_shape = g.node("Shape", ["past_key_0_in"], "capacity_shape", start=3, end=4)
        width_shape = g.node("Shape", ["input_ids"], "width_shape", start=1, end=2)
        g.node("Concat", [key_shape, width_shape], "cache_and_rows", axis=0)
        # Query rows of one key/value head are stacked group by group, [group * T], so the mask repeats
        # likewise.
        masks = {"grouped_mask": mask}
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

    def _norm(self, name: str, x: str, factor: float = 1.0, size: int | None = None) -> str:
        """RMSNormalization as one operator: hand-written, its square sum overflows fp16 on the NPU."""
        c = self.config
        scale = self.graph.weight(Weight(name, (size or c.hidden,), (Part(name, factor),)))
        return self.graph.node(
            "RMSNormalization", [x, scale], name + ".out", axis=-1, epsilon=c.rms_eps, stash_type=1
        )

    def _project(self, name: str, x: str, out: int, inner: int, *parts: Part, bias: bool = False) -> str:
        """x [1,T,inner] times the stacked matrices of `parts`, [1,T,out]; biases are the parts' `_bias`
        tensors."""
        g = self.graph
        matrix = g.weight(Weight(name, (inner, out), parts, transposed=True))
        y = g.node("MatMul", [x, matrix], name + ".out")
        if not bias:
            return y
        biases = tuple(replace(p, tensor=p.tensor + "_bias") for p in parts)
        vector = g.weight(Weight(name + "_bias", (out,), biases))
        return g.node("Add", [y, vector], name + ".biased")

    def _attention(self, i: int, x: str, read: str | None = None, inner: int | None = None) -> str:
        """Grouped-query attention over the cache and this pass's rows, as two score blocks joined before
        softmax.

        The cache is never concatenated with the new rows, so no pass copies it. Queries, keys and values are
        made of `read` [1,T,inner] where it is given, otherwise of the normed residual `x`.
        """
        c, g, layer = self.config, self.graph, f"layers.{i}."
        q_size, kv_size = c.heads * c.head_dim, c.kv_heads * c.head_dim
        normed = read or self._norm(layer + "attn_norm", x)
        # The scale of the scores, 1/sqrt(head_dim), rides on the query projection (or its norm): RoPE is
        # linear, so no pass pays for it.
        qkv = self._project(
            layer + "qkv",
            normed,
            q_size + 2 * kv_size,
            inner or c.hidden,
            Part(layer + "q", 1.0 if c.qk_norm else self._query_scale()),
            Part(layer + "k"),
            Part(layer + "v"),
            bias=c.qkv_bias,
        )
        sizes = g.constant("qk_v", [q_size + kv_size, kv_size])
        qk, v = g.nodes("Split", [qkv, sizes], [layer + "qk", layer + "v.rows"], axis=-1)
        if c.qk_norm:
            qk = self._qk_norm(layer, qk)
        rotated = qk if i in c.nope_layers else self._rotate(i, qk)
        sizes = g.constant("q_k", [q_size, kv_size])
        q, k = g.nodes("Split", [rotated, sizes], [layer + "q.rows", layer + "k.rows"], axis=-1)

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
        local = c.window is not None and i in c.local_layers
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
        y = g.node("Reshape", [y, g.constant("mix_flat", [1, -1, q_size])], layer + "mix")
        y = self._project(
            layer + "o", y, c.hidden, q_size, Part(layer + "o", self._residual_scale()), bias=c.o_bias
        )
        if c.sandwich:
            y = self._norm(layer + "attn_post_norm", y, c.residual_scale)
        return g.node("Add", [x, y], layer + "attended")

    def _query_scale(self) -> float:
        """What the query is multiplied by; under a softcap c the scores are to come out divided by c."""
        return self.config.query_scale / (self.config.attention_softcap or 1.0)

    def _residual_scale(self) -> float:
        """What the last product of a block is multiplied by; behind a norm it would have no effect."""
        return 1.0 if self.config.sandwich else self.config.residual_scale

    def _qk_norm(self, layer: str, qk: str) -> str:
        """Each head of q and k normalised on its own; one weight serves all queries, one all keys."""
        c, g = self.config, self.graph
        heads = g.node(
            "Reshape",
            [qk, g.constant("qk_heads", [1, -1, c.heads + c.kv_heads, c.head_dim])],
            layer + "qk.heads",
        )
        sizes = g.constant("q_and_k_heads", [c.heads, c.kv_heads])
        q, k = g.nodes("Split", [heads, sizes], [layer + "q.unnormed", layer + "k.unnormed"], axis=2)
        q = self._norm(layer + "q_norm", q, self._query_scale(), c.head_dim)
        k = self._norm(layer + "k_norm", k, 1.0, c.head_dim)
        both = g.node("Concat", [q, k], layer + "qk.normed.heads", axis=2)
        flat = g.constant("qk_flat", [1, -1, (c.heads + c.kv_heads) * c.head_dim])
        return g.node("Reshape", [both, flat], layer + "qk.normed")

    def _rotate(self, i: int, qk: str) -> str:
        c = self.config
        local = "_local" if c.local_rope is not None and i in c.local_layers else ""
        return self.graph.node(
            "RotaryEmbedding",
            [qk, "rope_cos" + local, "rope_sin" + local],
            f"layers.{i}.qk.rotated",
            num_heads=c.heads + c.kv_heads,
            interleaved=0,
        )

    def _ffn(self, i: int, x: str) -> str:
        """Gated feed-forward: down(activation(gate x) * up x), gate and up in one product."""
        c, g, layer = self.config, self.graph, f"layers.{i}."
        normed = self._norm(layer + "ffn_norm", x)
        both = self._project(
            layer + "gate_up",
            normed,
            2 * c.ffn,
            c.hidden,
            Part(layer + "gate"),
            Part(layer + "up"),
            bias=c.mlp_bias,
        )
        sizes = g.constant("gate_and_up", [c.ffn, c.ffn])
        gate, up = g.nodes("Split", [both, sizes], [layer + "gate", layer + "up"], axis=-1)
        if c.activation == "silu":
            sigmoid = g.node("Sigmoid", [gate], layer + "sigmoid")
            activated = g.node("Mul", [gate, sigmoid], layer + "silu")
        else:
            activated = g.node("Gelu", [gate], layer + "gelu", approximate="tanh")
        inner = g.node("Mul", [activated, up], layer + "inner")
        y = self._project(
            layer + "down",
            inner,
            c.hidden,
            c.ffn,
            Part(layer + "down", self._residual_scale()),
            bias=c.mlp_bias,
        )
        if c.sandwich:
            y = self._norm(layer + "ffn_post_norm", y, c.residual_scale)
        return g.node("Add", [x, y], layer + "out")

    def _head(self, normed: str, matrix: str, tokens: int) -> None:
        """Logits of every row. A Gemm reads the [tokens, d] matrix as it lies, so a tied head is stored
        once."""
        c, g = self.config, self.graph
        rows = g.node("Reshape", [normed, g.constant("flat_rows", [-1, c.hidden])], "norm.rows")
        scale = c.logit_scale / (c.final_softcap or 1.0)
        if scale != 1.0:
            rows = g.node("Mul", [rows, g.scalar("logit_scale", scale)], "norm.scaled")
        flat = g.node("Gemm", [rows, matrix], "logits.rows", transB=1)
        if c.final_softcap is not None:
            flat = g.node("Tanh", [flat], "logits.tanh")
            flat = g.node("Mul", [flat, g.scalar("final_softcap", c.final_softcap)], "logits.capped")
        g.node("Reshape", [flat, g.constant("logits_shape", [1, -1, tokens])], "logits")
