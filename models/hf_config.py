"""A ModelConfig out of a Hugging Face config.json; what it asks for beyond hexgraft is refused by name."""

from __future__ import annotations

from typing import Any

from hexgraft.models.config import ModelConfig
from hexgraft.models.errors import CheckpointError, DamagedError, UnsupportedError
from hexgraft.models.hf_rope import rope_from_hf
from hexgraft.models.json_file import Fields

MAX_LAYERS = 1024
_GEMMA: dict[str, Any] = {
    "head_dim": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA2: dict[str, Any] = _GEMMA | {
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3: dict[str, Any] = _GEMMA | {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "granite": {},
    "internlm3": {"rms_norm_eps": 1e-5, "head_dim": 128},
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "phi3": {"rms_norm_eps": 1e-5},
    "qwen2": {"sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    "smollm3": {"tie_word_embeddings": True, "rope_theta": 2e6, "no_rope_layer_interval": 4},
}
"""By model type, the defaults of the transformers configuration classes that are not everyone's."""

HF_FAMILIES = tuple(sorted([*_DEFAULTS, "gemma3"]))
"""The model types of config.json. gemma3 is a text model (gemma3_text) beside a vision tower, which is left
out."""


def config_from_hf(values: dict[str, Any], where: str = "config.json") -> ModelConfig:
    """Read sizes and switches; `where` names the file in errors. Raises CheckpointError.

    Defaults of missing keys are those of the transformers configuration classes.
    """
    family = Fields(values, where).text("model_type")
    if family not in HF_FAMILIES:
        raise CheckpointError(
            f"{where}: model type {family} is not supported", f"supported: {', '.join(HF_FAMILIES)}"
        )
    if family == "gemma3":
        family, values = "gemma3_text", _text_part(values, where)
    fields = Fields(_DEFAULTS[family] | values, where)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise UnsupportedError(f"{where}: {layers} layers are more than the {MAX_LAYERS} hexgraft takes")
    if fields.values.get("head_dim") is None and hidden % heads:
        raise DamagedError(f"{where}: hidden_size {hidden} does not divide into {heads} heads")
    head_dim = fields.integer("head_dim", max(1, hidden // heads))
    context = fields.integer("max_position_embeddings")
    rope = rope_from_hf(fields, family, head_dim, context)
    return ModelConfig(
        family="gemma3" if family == "gemma3_text" else family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        context=rope.context,
        context_limit=rope.limit,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope.rope,
        local_rope=rope.local,
        rotated=rope.rotated,
        tied=fields.flag("tie_word_embeddings"),
        activation=_activation(fields, family),
        **_biases(fields, family),
        **_scales(fields, family, hidden),
        **_layers(fields, family, layers),
    )


def _text_part(values: dict[str, Any], where: str) -> dict[str, Any]:
    inner = values.get("text_config")
    if not isinstance(inner, dict):
        raise DamagedError(f"{where} has no text_config")
    return {"tie_word_embeddings": values.get("tie_word_embeddings", True)} | inner


def _activation(fields: Fields, family: str) -> str:
    """Gemma's first releases say "gelu" in `hidden_act` and mean its tanh form."""
    if family.startswith("gemma"):
        name = fields.text("hidden_activation", "gelu_pytorch_tanh")
        if name == "gelu_pytorch_tanh" and fields.text("hidden_act", "gelu") in ("gelu", "gelu_pytorch_tanh"):
            return "gelu_tanh"
        name = fields.text("hidden_act", name) if name == "gelu_pytorch_tanh" else name
    else:
        name = fields.text("hidden_act", "silu")
        if name == "silu":
            return "silu"
    raise CheckpointError(
        f"{fields.where}: activation {name} is not supported",
        "supported: silu, and gelu_pytorch_tanh for Gemma",
    )


def _biases(fields: Fields, family: str) -> dict[str, Any]:
    """attention_bias means q, k, v and o; InternLM3's own code has `bias` (o, mlp) and `qkv_bias`."""
    if family == "qwen2":
        return {"qkv_bias": True}
    if family == "internlm3" and ("qkv_bias" in fields.values or "bias" in fields.values):
        bias = fields.flag("bias")
        return {"qkv_bias": fields.flag("qkv_bias"), "o_bias": bias, "mlp_bias": bias}
    if family in ("mistral", "phi3"):
        return {}
    attention = fields.flag("attention_bias")
    return {"qkv_bias": attention, "o_bias": attention, "mlp_bias": fields.flag("mlp_bias")}


def _scales(fields: Fields, family: str, hidden: int) -> dict[str, Any]:
    if family == "granite":
        return {
            "embedding_scale": fields.number("embedding_multiplier", 1.0),
            "residual_scale": fields.number("residual_multiplier", 1.0),
            "attention_scale": fields.number("attention_multiplier", 1.0),
            "logit_scale": 1 / fields.number("logits_scaling", 1.0),
        }
    if not family.startswith("gemma"):
        return {}
    scales: dict[str, Any] = {"embedding_scale": hidden**0.5}
    if family != "gemma":
        scales["attention_scale"] = fields.number("query_pre_attn_scalar") ** -0.5
        # Gemma 3's configuration names this cap too, but transformers never applies it there.
        if family == "gemma2":
            scales["attention_softcap"] = fields.maybe_number("attn_logit_softcapping")
        scales["final_softcap"] = fields.maybe_number("final_logit_softcapping")
        scales["sandwich"] = True
    return scales


def _layers(fields: Fields, family: str, layers: int) -> dict[str, Any]:
    """What differs from layer to layer: NoPE and sliding windows; and q/k norms, which no layer escapes."""
    switches: dict[str, Any] = {"qk_norm": family in ("qwen3", "gemma3_text")}
    nope: tuple[int, ...] = ()
    if family == "smollm3":
        nope = _nope_layers(fields, layers)
        switches["nope_layers"] = nope
    window = _window(fields, family)
    local = _local_layers(fields, family, layers, nope) if window is not None else ()
    if window is None:
        _require_full_layers(fields, family)
    if local or family == "gemma3_text":
        switches |= {"window": window if local else None, "local_layers": local}
    if fields.flag("use_bidirectional_attention"):
        raise UnsupportedError(
            f"{fields.where}: use_bidirectional_attention makes an encoder, which does not generate"
        )
    return switches


def _nope_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    marks = fields.values.get("no_rope_layers")
    if marks is None:
        step = fields.integer("no_rope_layer_interval")
        return tuple(i for i in range(layers) if (i + 1) % step == 0)
    if not isinstance(marks, list) or len(marks) < layers or not all(mark in (0, 1) for mark in marks):
        raise DamagedError(f"{fields.where}: no_rope_layers is not a list of a 0 or 1 for each layer")
    return tuple(i for i in range(layers) if not marks[i])


def _window(fields: Fields, family: str) -> int | None:
    if family in ("llama", "granite", "internlm3", "gemma"):
        return None
    if family in ("qwen2", "qwen3", "smollm3") and not fields.flag("use_sliding_window"):
        return None
    return fields.maybe_integer("sliding_window")


def _local_layers(fields: Fields, family: str, layers: int, nope: tuple[int, ...]) -> tuple[int, ...]:
    kinds = fields.values.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) < layers:
            raise DamagedError(f"{fields.where}: layer_types is not a list of one type for each layer")
        other = [kind for kind in kinds if kind not in ("full_attention", "sliding_attention")]
        if other:
            raise UnsupportedError(f"{fields.where}: layers of type {other[0]} are not supported")
        return tuple(i for i in range(layers) if kinds[i] == "sliding_attention")
    if family == "gemma2":
        return tuple(range(0, layers, 2))
    if family == "gemma3_text":
        step = fields.integer("sliding_window_pattern")
        return tuple(i for i in range(layers) if (i + 1) % step)
    if family in ("qwen2", "qwen3"):
        first = fields.values.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise DamagedError(f"{fields.where}: max_window_layers is not a whole number")
        return tuple(range(first, layers))
    return nope if family == "smollm3" else tuple(range(layers))


def _require_full_layers(fields: Fields, family: str) -> None:
    kinds = fields.values.get("layer_types") or []
    other = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else [kinds]
    if other:
        raise UnsupportedError(
            f"{fields.where}: layers of type {other[0]} are not supported in {family} without a window"
        )
