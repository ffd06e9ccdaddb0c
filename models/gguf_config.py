"""A ModelConfig out of GGUF metadata; what it asks for beyond hexgraft is refused by name."""

from __future__ import annotations

from typing import Any

from hexgraft.models.config import ModelConfig
from hexgraft.models.errors import CheckpointError, DamagedError, UnsupportedError
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.gguf_rope import GgufRope, rope_from_gguf
from hexgraft.models.hf_config import MAX_LAYERS
from hexgraft.models.json_file import Fields

GGUF_FAMILIES = ("gemma", "gemma2", "gemma3", "granite", "llama", "phi3", "qwen2", "qwen3", "smollm3")
"""Values of general.architecture. Mistral and InternLM3 go by "llama" there."""

_NOPE_STEP = 4
_GEMMA3_STEP = 6
_BIG_GEMMA = {"gemma2": 46, "gemma3": 62}
"""The 27B models, known by their layers, scale scores by hidden/heads instead of by head_dim."""


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read sizes from the metadata, and what the metadata leaves out from the tensors that are there.

    Raises CheckpointError.
    """
    fields = Fields(file.fields, str(file.path))
    family = fields.text("general.architecture")
    if family not in GGUF_FAMILIES:
        raise CheckpointError(
            f"{file.path}: architecture {family} is not supported", f"supported: {', '.join(GGUF_FAMILIES)}"
        )
    _refuse_unsupported(file, family)
    hidden, heads = (
        fields.integer(f"{family}.embedding_length"),
        fields.integer(f"{family}.attention.head_count"),
    )
    layers = fields.integer(f"{family}.block_count")
    if layers > MAX_LAYERS:
        raise UnsupportedError(f"{file.path}: {layers} layers are more than the {MAX_LAYERS} hexgraft takes")
    key_length = f"{family}.attention.key_length"
    if key_length not in file.fields and hidden % heads:
        raise DamagedError(f"{file.path}: embedding_length {hidden} does not divide into {heads} heads")
    head_dim = fields.integer(key_length, max(1, hidden // heads))
    tokens = file.fields.get("tokenizer.ggml.tokens")
    rope: GgufRope = rope_from_gguf(file, fields, family, head_dim)
    return ModelConfig(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer(f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=fields.integer(f"{family}.feed_forward_length"),
        vocab=fields.integer(f"{family}.vocab_size", len(tokens) if isinstance(tokens, list) else None),
        context=rope.context,
        context_limit=rope.limit,
        rms_eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope=rope.rope,
        local_rope=rope.local,
        rotated=rope.rotated,
        tied="output.weight" not in file.tensors,
        qkv_bias=family == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=family in ("qwen3", "gemma3"),
        sandwich=family in ("gemma2", "gemma3"),
        activation="gelu_tanh" if family.startswith("gemma") else "silu",
        nope_layers=tuple(range(_NOPE_STEP - 1, layers, _NOPE_STEP)) if family == "smollm3" else (),
        **_scales(fields, family, hidden, heads, layers),
        **_window(fields, family, layers),
    )


def _scales(fields: Fields, family: str, hidden: int, heads: int, layers: int) -> dict[str, Any]:
    if family == "granite":
        return {
            "embedding_scale": fields.number("granite.embedding_scale", 1.0),
            "residual_scale": fields.number("granite.residual_scale", 1.0),
            "attention_scale": fields.maybe_number("granite.attention.scale"),
            "logit_scale": 1 / fields.number("granite.logit_scale", 1.0),
        }
    if not family.startswith("gemma"):
        return {}
    scales: dict[str, Any] = {"embedding_scale": hidden**0.5}
    if _BIG_GEMMA.get(family) == layers:
        scales["attention_scale"] = (hidden / heads) ** -0.5
    if family == "gemma2":
        scales["attention_softcap"] = fields.number("gemma2.attn_logit_softcapping", 50.0)
        scales["final_softcap"] = fields.number("gemma2.final_logit_softcapping", 30.0)
    elif family == "gemma3":
        scales["final_softcap"] = fields.maybe_number("gemma3.final_logit_softcapping")
    return scales


def _window(fields: Fields, family: str, layers: int) -> dict[str, Any]:
    """Which layers are local: every other one of Gemma 2, five in six of Gemma 3, all of the others."""
    key = f"{family}.attention.sliding_window"
    if fields.values.get(key) == 0:
        return {}
    window = fields.maybe_integer(key)
    if window is None:
        return {}
    if family == "gemma2":
        local = tuple(range(0, layers, 2))
    elif family == "gemma3":
        local = tuple(i for i in range(layers) if (i + 1) % _GEMMA3_STEP)
    else:
        local = tuple(range(layers))
    return {"window": window, "local_layers": local}


def _refuse_unsupported(file: GgufFile, family: str) -> None:
    path, values = file.path, file.fields
    if values.get(f"{family}.expert_count", 0):
        raise UnsupportedError(
            f"{path}: a mixture of {values[f'{family}.expert_count']} experts is not supported"
        )
    value_length, key_length = (values.get(f"{family}.attention.{part}_length") for part in ("value", "key"))
    if value_length != key_length:
        raise UnsupportedError(
            f"{path}: key heads of {key_length or 'default'} and value heads of {value_length or 'default'} "
            f"dimensions are not supported together"
        )
