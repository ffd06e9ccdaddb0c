"""Tiny random draft heads on disk, in the layouts of EAGLE's authors, and what torch makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny import read_tiny_weights

Arrays = dict[str, NDArray[Any]]


def write_head(
    path: Path,
    target: Path,
    kind: str = "eagle3",
    *,
    rows: int | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    layers: int = 1,
    hidden: int | None = None,
    ffn: int = 96,
    own_head: bool = True,
    own_embed: bool = False,
    bias: bool = False,
    prefix: str = "",
    seed: int = 0,
    binary: bool = False,
    config: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    more: Arrays | None = None,
) -> Path:
    """Write a head for the tiny target in the folder `target`. `rows` of the vocabulary are proposed, all by
    default; `binary` makes it a pytorch_model.bin (needs torch)."""
    path.mkdir(parents=True)
    theirs = json.loads((target / "config.json").read_text())
    vocab, dt = theirs["vocab_size"], theirs["hidden_size"]
    d = hidden or dt
    rng = np.random.default_rng([seed, 5])
    out: Arrays = {}

    def matrix(name: str, height: int, width: int, gain: float = 1.0) -> None:
        out[name] = (rng.standard_normal((height, width)) * gain / width**0.5).astype(np.float32)

    def vector(name: str, mean: float = 1.0) -> None:
        out[name] = (mean + 0.1 * rng.standard_normal(d)).astype(np.float32)

    third = kind == "eagle3"
    matrix("fc.weight", d, 3 * dt if third else 2 * d)
    if bias:
        vector("fc.bias", 0.0)
    head_dim = d // heads
    for i in range(layers):
        layer = "midlayer." if third else f"layers.{i}."
        inner = 2 * d if third else d
        matrix(layer + "self_attn.q_proj.weight", heads * head_dim, inner)
        matrix(layer + "self_attn.k_proj.weight", kv_heads * head_dim, inner)
        matrix(layer + "self_attn.v_proj.weight", kv_heads * head_dim, inner)
        matrix(layer + "self_attn.o_proj.weight", d, heads * head_dim)
        matrix(layer + "mlp.gate_proj.weight", ffn, d)
        matrix(layer + "mlp.up_proj.weight", ffn, d)
        matrix(layer + "mlp.down_proj.weight", d, ffn)
        vector(layer + "post_attention_layernorm.weight")
        if third:
            vector(layer + "hidden_norm.weight")
        if third or i:
            vector(layer + "input_layernorm.weight")
    if third:
        vector("norm.weight")
    tokens = np.sort(rng.permutation(vocab)[: rows or vocab])
    if rows is not None:
        out["d2t"] = tokens - np.arange(rows)
        out["t2d"] = np.isin(np.arange(vocab), tokens)
    if own_head and third:
        matrix("lm_head.weight", rows or vocab, d, 4.0)
    if own_embed or d != dt:
        matrix("embed_tokens.weight", vocab, d, 4.0)
    out = {prefix + name: array for name, array in (out | (more or {})).items() if name not in drop}
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": d,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "hidden_act": "silu",
    }
    if third:
        values["draft_vocab_size"] = rows or vocab
    (path / "config.json").write_text(json.dumps(values | (config or {})))
    if binary:
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in out.items()}, path / "pytorch_model.bin")
    else:
        from safetensors.numpy import save_file

        save_file(out, path / "model.safetensors")
    return path


class Oracle:
    """A head in torch, straight from its published description: every row sees those that `seen` names.

    Rows are (token, state) pairs; a state is the target's features or another row's output.
    """

    def __init__(self, folder: Path, target: Path, weights: Arrays) -> None:
        import torch

        self.torch = torch
        theirs = read_tiny_weights(target)
        self.w = {name: torch.from_numpy(np.asarray(array)) for name, array in weights.items()}
        self.config = json.loads((folder / "config.json").read_text())
        embed = theirs["model.embed_tokens.weight"]
        self.w.setdefault("embed_tokens.weight", torch.from_numpy(embed))
        if "lm_head.weight" not in self.w:
            head = theirs.get("lm_head.weight", embed)
            if "d2t" in weights:
                head = head[weights["d2t"] + np.arange(len(weights["d2t"]))]
            self.w["lm_head.weight"] = torch.from_numpy(head)
        self.third = "norm.weight" in self.w

    def mix(self, features: NDArray[np.float32]) -> Any:
        """What features of the target become: a state."""
        state = self.torch.from_numpy(features)
        return state @ self.w["fc.weight"].T if self.third else state

    def run(
        self, tokens: list[int], states: Any, positions: list[int], seen: NDArray[np.bool_]
    ) -> tuple[Any, Any]:
        """Logits [T, rows] and output states [T, d] of T rows at once; `seen` [T, T]."""
        torch, w = self.torch, self.w
        embedded = w["embed_tokens.weight"][torch.tensor(tokens)]
        if self.third:
            token = self._norm(embedded, "midlayer.input_layernorm")
            read = torch.cat((token, self._norm(states, "midlayer.hidden_norm")), -1)
            x = self._layer("midlayer.", states, read, positions, seen)
            return self._norm(x, "norm") @ w["lm_head.weight"].T, x
        x = torch.cat((embedded, states), -1) @ w["fc.weight"].T + w.get("fc.bias", 0)
        for i in range(self.config["num_hidden_layers"]):
            layer = f"layers.{i}."
            x = self._layer(layer, x, self._norm(x, layer + "input_layernorm") if i else x, positions, seen)
        return x @ w["lm_head.weight"].T, x

    def _norm(self, x: Any, name: str) -> Any:
        scale = self.torch.rsqrt((x * x).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.w[name + ".weight"]

    def _layer(self, layer: str, x: Any, read: Any, positions: list[int], seen: NDArray[np.bool_]) -> Any:
        torch, w, c = self.torch, self.w, self.config
        heads, kv, count = c["num_attention_heads"], c["num_key_value_heads"], len(positions)
        dim = c["hidden_size"] // heads
        angles = torch.outer(
            torch.tensor(positions, dtype=torch.float64), 10000.0 ** -(torch.arange(0, dim, 2).double() / dim)
        )
        cos, sin = (torch.cat((f(angles), f(angles)), -1).float() for f in (torch.cos, torch.sin))

        def split(name: str, number: int, turn: bool) -> Any:
            rows = (
                (read @ w[f"{layer}self_attn.{name}_proj.weight"].T).view(count, number, dim).transpose(0, 1)
            )
            if turn:
                half = torch.cat((-rows[..., dim // 2 :], rows[..., : dim // 2]), -1)
                rows = rows * cos + half * sin
            return rows.repeat_interleave(heads // number, 0)

        q, k, v = split("q", heads, True), split("k", kv, True), split("v", kv, False)
        scores = (q @ k.transpose(1, 2)) / dim**0.5
        scores = scores.masked_fill(~torch.from_numpy(seen), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(count, -1)
        x = x + mixed @ w[layer + "self_attn.o_proj.weight"].T
        normed = self._norm(x, layer + "post_attention_layernorm")
        gate = torch.nn.functional.silu(normed @ w[layer + "mlp.gate_proj.weight"].T)
        return x + (gate * (normed @ w[layer + "mlp.up_proj.weight"].T)) @ w[layer + "mlp.down_proj.weight"].T


def read_head(path: Path) -> Arrays:
    """Tensors of a head written by `write_head` as safetensors, without a prefix."""
    from safetensors.numpy import load_file

    return {
        name.removeprefix("model."): array for name, array in load_file(path / "model.safetensors").items()
    }
