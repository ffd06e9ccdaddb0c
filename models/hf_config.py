"""A ModelConfig out of a Hugging Face config.json; what it asks for beyond hexgraft is refused by name."""

from __future__ import annotations

from typing import Any

from hexgraft.models.config import ModelConfig, Rope
from hexgraft.models.errors import CheckpointError
from hexgraft.models.json_file import Fields
from hexgraft.models.rope_scaling import plain_rope

HF_FAMILIES = ("llama", "mistral", "qwen2")
MAX_LAYERS = 1024
_DEFAULT_THETA = 10000.0
_MISTRAL_WINDOW = 4096


def config_from_hf(values: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """Read sizes and switches; `where` names the file in errors. Raises CheckpointError.

    Defaults of missing keys are those of the transformers configuration classes.
    """
    fields = Fields(values, where)
    family = fields.text("model_type")
    if family not in HF_FAMILIES:
        raise CheckpointError(
            f"{where}: model type {family} is not supported", f"supported: {', '.join(HF_FAMILIES)}"
        )
    _refuse_unsupported(fields, family)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise CheckpointError(f"{where}: {layers} layers are more than the {MAX_LAYERS} hexgraft takes")
    if values.get("head_dim") is None and hidden % heads:
        raise CheckpointError(f"{where}: hidden_size {hidden} does not divide into {heads} heads")
    head_dim = fields.integer("head_dim", hidden // heads)
    return ModelConfig(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        context=fields.integer("max_position_embeddings"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields, head_dim),
        tied=fields.flag("tie_word_embeddings"),
        qkv_bias=family == "qwen2",
    )


def _refuse_unsupported(fields: Fields, family: str) -> None:
    where = fields.where
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise CheckpointError(f"{where}: activation {activation} is not supported", "supported: silu")
    if fields.values.get("quantization_config") is not None:
        raise CheckpointError(
            f"{where}: a quantised checkpoint (quantization_config) is not supported",
            "give the original fp32, fp16 or bf16 folder, or a GGUF file",
        )
    if family == "llama" and fields.flag("attention_bias"):
        raise CheckpointError(
            f"{where}: attention_bias puts biases on q, k, v and o, and a bias on o is not supported"
        )
    if family == "llama" and fields.flag("mlp_bias"):
        raise CheckpointError(f"{where}: biases in the feed-forward layers (mlp_bias) are not supported")
    _refuse_window(fields, family)


def _refuse_window(fields: Fields, family: str) -> None:
    kinds = fields.values.get("layer_types") or []
    other = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else [kinds]
    if other:
        raise CheckpointError(f"{fields.where}: layers of type {other[0]} are not supported")
    if family == "qwen2" and not fields.flag("use_sliding_window"):
        return
    window = fields.values.get("sliding_window", _MISTRAL_WINDOW if family == "mistral" else None)
    context = fields.integer("max_position_embeddings")
    if window is None or kinds or family == "llama":
        return
    if not isinstance(window, int) or window < context:
        raise CheckpointError(
            f"{fields.where}: sliding-window attention ({window} of {context} positions) is not supported",
            f"if the model is never used beyond {window} positions, lower max_position_embeddings to that",
        )


def _rope(fields: Fields, head_dim: int) -> Rope:
    """rope_theta stands at top level or, since transformers 5, in rope_parameters."""
    theta = fields.number("rope_theta", _DEFAULT_THETA)
    partial = fields.number("partial_rotary_factor", 1.0)
    for key in ("rope_parameters", "rope_scaling"):
        settings = fields.values.get(key)
        if settings is None:
            continue
        if not isinstance(settings, dict):
            raise CheckpointError(f"{fields.where}: {key} is not an object")
        inner = Fields(settings, f"{fields.where}, {key}")
        kind = inner.text("rope_type", settings.get("type") or "default")
        if kind != "default":
            raise CheckpointError(
                f"{fields.where}: RoPE scaling of type {kind} is not supported", "supported: default (none)"
            )
        theta = inner.number("rope_theta", theta)
        partial = inner.number("partial_rotary_factor", partial)
    return plain_rope(int(head_dim * partial), theta)
