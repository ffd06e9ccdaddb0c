"""Where each canonical tensor lies in a Hugging Face folder, fused matrices and Gemma's norms included."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hexgraft.models.config import ModelConfig, tensor_shapes

LAYER_PARTS = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "o": "self_attn.o_proj.weight",
    "o_bias": "self_attn.o_proj.bias",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
_SANDWICH = {
    "attn_post_norm": "post_attention_layernorm.weight",
    "ffn_norm": "pre_feedforward_layernorm.weight",
    "ffn_post_norm": "post_feedforward_layernorm.weight",
}
_FUSED = {
    "self_attn.qkv_proj.weight": ("q", "k", "v"),
    "mlp.gate_up_proj.weight": ("gate", "up"),
}
_HEAD = "lm_head.weight"
_TEXT_PREFIXES = ("", "language_model.", "model.language_model.")
"""In front of the text model's names; the last two where it is part of a vision model."""


@dataclass(frozen=True, slots=True)
class Source:
    """Rows from `first` on of one tensor of the folder, with `plus` added (Gemma stores norms less 1)."""

    tensor: str
    first: int = 0
    plus: float = 0.0


def hf_sources(config: ModelConfig, tensors: Collection[str]) -> dict[str, Source]:
    """The source of every canonical tensor, given the names the folder has."""
    prefix, head = _prefix(tensors)
    shapes = tensor_shapes(config)
    sources: dict[str, Source] = {}
    parts = LAYER_PARTS | (_SANDWICH if config.sandwich else {})
    gemma = config.family.startswith("gemma")
    for name in shapes:
        plus = 1.0 if gemma and name.endswith("norm") else 0.0
        if name in ("embed", "norm", "head"):
            whole = {"embed": prefix + "embed_tokens.weight", "norm": prefix + "norm.weight", "head": head}
            sources[name] = Source(whole[name], plus=plus)
        else:
            _, layer, part = name.split(".")
            sources[name] = Source(f"{prefix}layers.{layer}.{parts[part]}", plus=plus)
    for i in range(config.layers):
        for fused, members in _FUSED.items():
            tensor = f"{prefix}layers.{i}.{fused}"
            if tensor not in tensors and tensor.removesuffix("weight") + "qweight" not in tensors:
                continue
            first = 0
            for part in members:
                name = f"layers.{i}.{part}"
                sources[name] = Source(tensor, first)
                first += shapes[name][0]
    return sources


def file_shapes(config: ModelConfig, sources: dict[str, Source]) -> dict[str, tuple[int, ...]]:
    """The shape each tensor of the folder must have: its canonical tensors, one below the other."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in tensor_shapes(config).items():
        source = sources[name]
        rows = max(source.first + shape[0], shapes.get(source.tensor, (0,))[0])
        shapes[source.tensor] = (rows, *shape[1:])
    return shapes


def ignorable(name: str, tied: bool) -> bool:
    """Whether a tensor may be left out: tables, a tied head's copy, what a vision model has besides text."""
    if name.endswith(".rotary_emb.inv_freq") or (tied and name.endswith(_HEAD)):
        return True
    return name.removeprefix("model.").startswith(("vision_tower.", "multi_modal_projector."))


def _prefix(tensors: Collection[str]) -> tuple[str, str]:
    """What stands before the names of the text model, and the name of its head."""
    for text in _TEXT_PREFIXES:
        prefix = text if text.startswith("model.") else text + "model."
        if prefix + "embed_tokens.weight" in tensors:
            return prefix, (_HEAD if text.startswith("model.") else text + _HEAD)
    return "model.", _HEAD
