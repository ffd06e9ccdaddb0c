"""The draft head as a torch module, unrolled over its own states as it will be used.

Sources: Li et al., "EAGLE-3", arXiv 2503.01840 (architecture, training-time test).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hexgraft.export.train.dataset import Batch
from hexgraft.export.train.norm import Norm

functional = torch.nn.functional


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of a head, those of a target layer. `features` are the target's layers it reads."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    features: tuple[int, ...]
    theta: float
    eps: float


class HeadAttention(nn.Module):
    """The projections of attention; q, k and v read token and state side by side."""

    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        self.q_proj = _linear(2 * s.hidden, s.heads * s.head_dim)
        self.k_proj = _linear(2 * s.hidden, s.kv_heads * s.head_dim)
        self.v_proj = _linear(2 * s.hidden, s.kv_heads * s.head_dim)
        self.o_proj = _linear(s.heads * s.head_dim, s.hidden)


class HeadMlp(nn.Module):
    """The gated feed-forward."""

    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        self.gate_proj = _linear(s.hidden, s.ffn)
        self.up_proj = _linear(s.hidden, s.ffn)
        self.down_proj = _linear(s.ffn, s.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class HeadLayer(nn.Module):
    """The one decoder layer of a head."""

    def __init__(self, s: HeadSizes) -> None:
        super().__init__()
        self.self_attn = HeadAttention(s)
        self.mlp = HeadMlp(s)
        self.hidden_norm = Norm(s.hidden, eps=s.eps)
        self.input_layernorm = Norm(s.hidden, eps=s.eps)
        self.post_attention_layernorm = Norm(s.hidden, eps=s.eps)


def _linear(inner: int, out: int) -> nn.Linear:
    return nn.Linear(inner, out, bias=False)


class HeadNet(nn.Module):
    """One decoder layer over mixed target features; names of parameters are those of the published layout.

    `feature_scale` is what features are divided by in training; it goes into `fc` when the head is written.
    """

    feature_scale: Tensor
    frequencies: Tensor

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        s = self.sizes = sizes
        self.fc = _linear(len(s.features) * s.hidden, s.hidden)
        self.midlayer = HeadLayer(s)
        self.norm = Norm(s.hidden, eps=s.eps)
        self.register_buffer("feature_scale", torch.ones(len(s.features) * s.hidden))
        frequencies = s.theta ** (-torch.arange(0, s.head_dim, 2, dtype=torch.float64) / s.head_dim)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def unroll(self, batch: Batch, embedding: Tensor, steps: int) -> list[Tensor]:
        """States before the last norm of `steps` steps, [B, L - s, d] of step s = 1, 2, ...

        Step s at row i has read the tokens up to i + s and the target's features up to i, as a node at depth
        s - 1 of a tree has; it says what the target's state at i + s is.
        """
        states: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        longest = batch.states.shape[1]
        hidden = self.fc(batch.states.flatten(2) / self.feature_scale)
        for step in range(1, steps + 1):
            rows = longest - step
            if rows < 1:
                break
            tokens = batch.tokens[:, step : step + rows]
            embedded = functional.embedding(tokens, embedding).float()
            hidden = self._layer(embedded, hidden[:, :rows], keys, values, step)
            states.append(hidden)
        return states

    def _layer(
        self, embedded: Tensor, hidden: Tensor, keys: list[Tensor], values: list[Tensor], step: int
    ) -> Tensor:
        layer, attention = self.midlayer, self.midlayer.self_attn
        dim = self.sizes.head_dim
        read = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), -1)
        places = torch.arange(step, step + read.shape[1], device=read.device)
        q = rotate_rows(split_heads(attention.q_proj(read), dim), places, self.frequencies) * dim**-0.5
        keys.append(rotate_rows(split_heads(attention.k_proj(read), dim), places, self.frequencies))
        values.append(split_heads(attention.v_proj(read), dim))
        hidden = hidden + attention.o_proj(self._attend(q, keys, values))
        return hidden + layer.mlp(layer.post_attention_layernorm(hidden))  # type: ignore[no-any-return]

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Row i sees the first step's rows up to i, and of every later step the row that it grew from."""
        rows, group = q.shape[2], self.sizes.heads // self.sizes.kv_heads
        first, *later = (x[:, :, :rows].repeat_interleave(group, 1) for x in keys)
        scores = q @ first.transpose(-1, -2)
        hide = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.float().masked_fill(hide, -1e30)
        own = [(q * k).sum(-1, keepdim=True).float() for k in later]
        shares = torch.softmax(torch.cat((scores, *own), -1), -1).to(q.dtype)
        first, *later = (x[:, :, :rows].repeat_interleave(group, 1) for x in values)
        mixed = shares[..., :rows] @ first
        for place, value in enumerate(later):
            mixed = mixed + shares[..., rows + place, None] * value
        return mixed.transpose(1, 2).flatten(2)


def split_heads(x: Tensor, dim: int) -> Tensor:
    """[B, L, H * dim] to [B, H, L, dim]."""
    return x.view(*x.shape[:-1], -1, dim).transpose(1, 2)


def rotate_rows(x: Tensor, places: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate-half RoPE of [B, H, L, dim] at `places` [L]."""
    angles = places[:, None].double() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
