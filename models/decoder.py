"""The decoder, written once as an ONNX graph with a free tree mask; a family is a config, never a copy of
this file.

The graph knows nothing of trees: slots, positions and visibility reach it as three separate inputs (cache
rows, RoPE tables, mask), none derived from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnx import TensorProto

from hexgraft.models.attention import CAPACITY, COLUMNS, FUSED, STACKED, WIDTH, SplitAttention
from hexgraft.models.config import ModelConfig
from hexgraft.models.fused_attention import FusedAttention
from hexgraft.models.graph import Graph, GraphBuilder, Part, Weight


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
    attention: str = STACKED,
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

    `attention` is STACKED, CHOSEN or FUSED. Where it is fused, past_key_{i}_in and past_value_{i}_in are
    [1,kv_heads,S,head_dim], S >= C+T, and so are their outputs, to be bound to the same buffers: the rows of
    this pass are written to C.. of them. A row sees no later row then, whatever the mask says.
    """
    return DecoderBuilder(config, name, attention=attention).build(weights_file, features)


class DecoderBuilder:
    """Builds a decoder's graph piece by piece; a draft head is made of the same pieces."""

    def __init__(self, config: ModelConfig, name: str, *, attention: str = STACKED) -> None:
        self.config, self.graph = config, GraphBuilder(name)
        self.attention: SplitAttention | FusedAttention = (
            FusedAttention(config, self.graph)
            if attention == FUSED
            else SplitAttention(config, self.graph, stacked=attention == STACKED)
        )

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
        g.input("attention_mask", (1, 1, WIDTH, COLUMNS))
        g.input("position_ids_cos", (1, 1, WIDTH, c.head_dim // 2))
        g.input("position_ids_sin", (1, 1, WIDTH, c.head_dim // 2))
        if c.window is not None:
            g.input("attention_mask_local", (1, 1, WIDTH, COLUMNS))
        if c.local_rope is not None:
            g.input("position_ids_cos_local", (1, 1, WIDTH, c.head_dim // 2))
            g.input("position_ids_sin_local", (1, 1, WIDTH, c.head_dim // 2))
        g.output("logits", (1, WIDTH, rows))
        self.attention.cache()
        self._prologue()
        return ids

    def _embedded(self, ids: str) -> str:
        c, g = self.config, self.graph
        embed = g.weight(Weight("embed", (c.vocab, c.hidden), (Part("embed"),)))
        x = g.node("Gather", [embed, ids], "embedded")
        if c.embedding_scale != 1.0:
            x = g.node("Mul", [x, g.scalar("embedding_scale", c.embedding_scale)], "embedded.scaled")
        return x

    def _prologue(self) -> None:
        """What every layer shares, beginning with RoPE tables as the operator wants them."""
        g = self.graph
        tables = (
            ("cos", "sin") if self.config.local_rope is None else ("cos", "sin", "cos_local", "sin_local")
        )
        for table in tables:
            g.node("Squeeze", [f"position_ids_{table}", g.constant("axis_1", [1])], f"rope_{table}")
        self.attention.prologue()

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
        """Grouped-query attention over the cache and this pass's rows. Queries, keys and values are made of
        `read` [1,T,inner] where it is given, otherwise of the normed residual `x`."""
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

        y = self.attention.layer(i, q, k, v, local=c.window is not None and i in c.local_layers)
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
