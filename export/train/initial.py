"""What a draft head starts from: the last layer of its target, read out of the target's own graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hexgraft.export.train.head_net import HeadNet, HeadSizes
from hexgraft.export.train.plain_rope import rope_base
from hexgraft.export.train.torch_graph import TorchGraph

_MIXED = 0.02
"""How large the features other than the highest are mixed in at first, relative to it."""


def head_sizes(graph: TorchGraph, features: tuple[int, ...]) -> HeadSizes:
    """A head of the sizes of the target's layers. Its RoPE is the target's before any scaling."""
    model = graph.model
    ffn = graph.weight("layers.0.gate_up").shape[1] // 2
    theta = rope_base(model.rope)
    return HeadSizes(
        model.hidden, model.heads, model.kv_heads, model.head_dim, ffn, features, theta, graph.eps
    )


def initial_head(graph: TorchGraph, features: tuple[int, ...], scale: Tensor, seed: int) -> HeadNet:
    """A head that begins as the target's last layer on top of its highest feature.

    The half of q, k and v that reads the token comes from the target's first layer, the half that reads the
    state from its last. The scale of scores that the graph has in q is taken out again.
    """
    torch.manual_seed(seed)
    net = HeadNet(head_sizes(graph, features))
    s, last = net.sizes, graph.model.layers - 1
    net.feature_scale.copy_(scale)
    with torch.no_grad():
        d = s.hidden
        # The state is made of size 1 or so, whatever the target's is: norms undo it, and steps fit its size.
        size = float(scale[-d:].mean())
        torch.nn.init.normal_(net.fc.weight, std=_MIXED / math.sqrt(len(features) * d))
        net.fc.weight[:, -d:] += torch.diag(scale[-d:] / size)
        q_size, kv_size = s.heads * s.head_dim, s.kv_heads * s.head_dim
        layer, attention = net.midlayer, net.midlayer.self_attn
        starts = {"q": 0, "k": q_size, "v": q_size + kv_size}
        for part, projection in {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj}.items():
            columns = slice(starts[part], starts[part] + (q_size if part == "q" else kv_size))
            halves = [read_matrix(graph, f"layers.{number}.qkv")[columns] for number in (0, last)]
            factor = math.sqrt(s.head_dim) if part == "q" else 1.0
            projection.weight.copy_(torch.cat(halves, 1) * factor / math.sqrt(2))
        attention.o_proj.weight.copy_(read_matrix(graph, f"layers.{last}.o") / size)
        gate_up = read_matrix(graph, f"layers.{last}.gate_up")
        layer.mlp.gate_proj.weight.copy_(gate_up[: s.ffn])
        layer.mlp.up_proj.weight.copy_(gate_up[s.ffn :])
        layer.mlp.down_proj.weight.copy_(read_matrix(graph, f"layers.{last}.down") / size)
        layer.input_layernorm.weight.copy_(graph.weight("layers.0.attn_norm"))
        layer.hidden_norm.weight.copy_(graph.weight(f"layers.{last}.attn_norm"))
        layer.post_attention_layernorm.weight.copy_(graph.weight(f"layers.{last}.ffn_norm"))
        net.norm.weight.copy_(graph.weight("norm"))
    return net


def read_matrix(graph: TorchGraph, name: str) -> Tensor:
    """A matrix [out, in] of the graph, which has it transposed."""
    return graph.weight(name).float().t()
