"""A small draft model: some of the target's layers between its own embedding and head, trained to make up for
the others.

Training one on the target's distribution over the target's own text is distillation on policy; see Agarwal et
al., "GKD", arXiv 2306.13649.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from hexgraft.export.train.dataset import Batch
from hexgraft.export.train.head_net import HeadMlp, HeadSizes, rotate_rows, split_heads
from hexgraft.export.train.initial import head_sizes, read_matrix
from hexgraft.export.train.norm import Norm
from hexgraft.export.train.plain_rope import is_plain
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.host.manifest import ModelEntry
from hexgraft.models.errors import UsageError

functional = torch.nn.functional
FAMILIES = ("llama", "qwen2", "mistral")


class SmallAttention(nn.Module):
    """The projections of attention, as Hugging Face names them."""

    def __init__(self, s: HeadSizes, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=bias)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=bias)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=bias)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)


class SmallLayer(nn.Module):
    """A decoder layer."""

    def __init__(self, s: HeadSizes, bias: bool) -> None:
        super().__init__()
        self.sizes = s
        self.self_attn = SmallAttention(s, bias)
        self.mlp = HeadMlp(s)
        self.input_layernorm = Norm(s.hidden, eps=s.eps)
        self.post_attention_layernorm = Norm(s.hidden, eps=s.eps)

    def forward(self, x: Tensor, frequencies: Tensor) -> Tensor:
        s, attention = self.sizes, self.self_attn
        read = self.input_layernorm(x)
        places = torch.arange(x.shape[1], device=x.device)
        q = rotate_rows(split_heads(attention.q_proj(read), s.head_dim), places, frequencies)
        k = rotate_rows(split_heads(attention.k_proj(read), s.head_dim), places, frequencies)
        v = split_heads(attention.v_proj(read), s.head_dim)
        group = s.heads // s.kv_heads
        keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = functional.scaled_dot_product_attention(
            q.to(v.dtype), keys.to(v.dtype), values, is_causal=True
        )
        x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class SmallNet(nn.Module):
    """Layers and the last norm; embedding and output rows are the target's and stay as they are."""

    frequencies: Tensor

    def __init__(self, sizes: HeadSizes, layers: int, bias: bool) -> None:
        super().__init__()
        self.sizes, self.bias = sizes, bias
        self.layers = nn.ModuleList(SmallLayer(sizes, bias) for _ in range(layers))
        self.norm = Norm(sizes.hidden, eps=sizes.eps)
        frequencies = sizes.theta ** (
            -torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim
        )
        self.register_buffer("frequencies", frequencies, persistent=False)

    def unroll(self, batch: Batch, embedding: Tensor, steps: int) -> list[Tensor]:
        """As `HeadNet.unroll`: the state of step s at row i has read the tokens up to i + s. On a known text
        the steps of a model are its rows, read one after the other."""
        x = functional.embedding(batch.tokens[:, :-1], embedding).float()
        for layer in self.layers:
            x = layer(x, self.frequencies)
        return [x[:, step:] for step in range(1, steps + 1) if step < x.shape[1]]


def check_small(model: ModelEntry, layers: int) -> None:
    """Raise UsageError where `layers` of this target cannot be a small draft: too many or too few, or of
    another kind than the draft's own."""
    usual = model.window is None and is_plain(model.rope, model.head_dim)
    if model.architecture not in FAMILIES or not usual:
        raise UsageError(
            f"small drafts are made of plain {', '.join(FAMILIES)} models only, not of {model.name}",
            "use --kind head",
        )
    if not 1 < layers < model.layers:
        raise UsageError(
            f"{layers} layers of a target of {model.layers} are no small draft of it",
            f"use --layers {max(2, model.layers // 4)}",
        )


def initial_small(graph: TorchGraph, layers: int) -> SmallNet:
    """`layers` of the target's layers, evenly spread, first and last among them. Raises as `check_small`."""
    check_small(graph.model, layers)
    net = SmallNet(head_sizes(graph, ()), layers, graph.has("layers.0.qkv_bias"))
    chosen = np.linspace(0, graph.model.layers - 1, layers).round().astype(int)
    with torch.no_grad():
        for number, layer in zip(chosen.tolist(), net.layers, strict=True):
            assert isinstance(layer, SmallLayer)
            _fill(layer, graph, f"layers.{number}.")
        net.norm.weight.copy_(graph.weight("norm"))
    return net


def _fill(layer: SmallLayer, graph: TorchGraph, name: str) -> None:
    s, attention = layer.sizes, layer.self_attn
    parts = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
    factors = (math.sqrt(s.head_dim), 1.0, 1.0)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    matrices = torch.split(read_matrix(graph, name + "qkv"), parts)
    for projection, matrix, factor in zip(projections, matrices, factors, strict=True):
        projection.weight.copy_(matrix * factor)
    if projections[0].bias is not None:
        vectors = torch.split(graph.weight(name + "qkv_bias"), parts)
        for projection, vector, factor in zip(projections, vectors, factors, strict=True):
            projection.bias.copy_(vector * factor)
    attention.o_proj.weight.copy_(read_matrix(graph, name + "o"))
    gate, up = torch.split(read_matrix(graph, name + "gate_up"), s.ffn)
    layer.mlp.gate_proj.weight.copy_(gate)
    layer.mlp.up_proj.weight.copy_(up)
    layer.mlp.down_proj.weight.copy_(read_matrix(graph, name + "down"))
    layer.input_layernorm.weight.copy_(graph.weight(name + "attn_norm"))
    layer.post_attention_layernorm.weight.copy_(graph.weight(name + "ffn_norm"))
