"""Where each canonical tensor lies in a GGUF file, fused matrices included."""

from __future__ import annotations

from collections.abc import Collection

from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.hf_names import Source

_PARTS = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "o": "attn_output.weight",
    "o_bias": "attn_output.bias",
    "attn_post_norm": "post_attention_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
    "ffn_post_norm": "post_ffw_norm.weight",
}
_WHOLE = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}


def gguf_sources(config: ModelConfig, tensors: Collection[str]) -> dict[str, Source]:
    """The source of every canonical tensor, given the names the file has.

    Gemma's norms are stored as multiplied, with the 1 added. `ffn_up` without a `ffn_gate` holds both, gate
    first.
    """
    shapes = tensor_shapes(config)
    sources: dict[str, Source] = {}
    for name in shapes:
        if name in _WHOLE:
            sources[name] = Source(_WHOLE[name])
        else:
            _, layer, part = name.split(".")
            sources[name] = Source(f"blk.{layer}.{_PARTS[part]}")
    for i in range(config.layers):
        block, layer = f"blk.{i}.", f"layers.{i}."
        if block + "attn_qkv.weight" in tensors:
            first = 0
            for part in "qkv":
                sources[layer + part] = Source(block + "attn_qkv.weight", first)
                first += shapes[layer + part][0]
        if block + "ffn_gate.weight" not in tensors:
            sources[layer + "gate"] = Source(block + "ffn_up.weight")
            sources[layer + "up"] = Source(block + "ffn_up.weight", config.ffn)
    return sources
