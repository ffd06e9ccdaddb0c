"""The rotary embedding a config.json asks for, its scaling resolved into plain frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hexgraft.models.config import Rope
from hexgraft.models.errors import CheckpointError, DamagedError, UnsupportedError
from hexgraft.models.json_file import Fields
from hexgraft.models.partial_rope import padded_rope
from hexgraft.models.rope_scaling import (
    factored_rope,
    linear_rope,
    llama3_rope,
    longrope_scale,
    plain_rope,
    yarn_context,
    yarn_mscale,
    yarn_rope,
)

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_UP_TO_ORIGINAL = ("dynamic", "longrope")
_THETA = 10000.0
PARTIAL = ("llama", "phi3", "qwen2", "granite")
"""Families of which only a part of each head may be rotated: those without norms of q and k."""


@dataclass(frozen=True, slots=True)
class HfRope:
    """`context` is as far as the frequencies are right, `limit` why that is less than the checkpoint's."""

    rope: Rope
    local: Rope | None
    context: int
    limit: str | None
    rotated: int | None


def rope_from_hf(fields: Fields, family: str, head_dim: int, context: int) -> HfRope:
    """Read rope_theta, rope_scaling and transformers 5's rope_parameters. Raises CheckpointError.

    `dynamic` and `longrope` change their frequencies with the length of the text, which a cache of rotated
    keys cannot follow: they are taken up to their original context only.
    """
    settings = _settings(fields, "full_attention" if family == "gemma3_text" else None)
    theta = settings.number("rope_theta", fields.number("rope_theta", _THETA))
    partial = settings.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    dim = int(head_dim * partial)
    if not 2 <= dim <= head_dim or dim % 2 or head_dim % 2 or (dim < head_dim and family not in PARTIAL):
        raise CheckpointError(
            f"{fields.where}: RoPE over {dim} of {head_dim} head dimensions is not supported in {family}",
            f"parts of a head may be rotated in {', '.join(PARTIAL)}",
        )
    kind = settings.text("rope_type", settings.text("type", "default"))
    if kind == "su" or (kind == "yarn" and family == "phi3"):
        kind = "longrope"  # Phi-3's first releases named it so
    original = settings.integer("original_max_position_embeddings", _original(fields, context))
    if family == "phi3":
        original = fields.integer("original_max_position_embeddings", original)
    rope = padded_rope(_resolve(settings, kind, dim, theta, context, original), head_dim)
    rotated = dim if dim < head_dim else None
    local = None
    if family == "gemma3_text":
        inner = _settings(fields, "sliding_attention")
        if inner.text("rope_type", "default") != "default":
            raise UnsupportedError(f"{fields.where}: RoPE scaling of the sliding layers is not supported")
        local = plain_rope(dim, inner.number("rope_theta", fields.number("rope_local_base_freq")))
    if kind == "yarn" and settings.values.get("original_max_position_embeddings") is not None:
        context = yarn_context(context, settings.number("factor", 1.0), original)
    if kind not in _UP_TO_ORIGINAL or (kind == "dynamic" and original >= context):
        return HfRope(rope, local, context, None, rotated)
    limit = f"RoPE scaling of type {kind} is right up to its original context of {original} positions only"
    return HfRope(rope, local, min(context, original), limit if original < context else None, rotated)


def _settings(fields: Fields, layer_type: str | None) -> Fields:
    """The object that holds the scaling; Gemma 3 has one for each type of layer, or scales global ones."""
    merged: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = fields.values.get(key)
        if value is None:
            continue
        if isinstance(value, dict) and layer_type is not None:
            nested = any(isinstance(inner, dict) for inner in value.values())
            if nested:
                value = value.get(layer_type) or {}
            elif layer_type == "sliding_attention":
                value = {}
        if not isinstance(value, dict):
            raise DamagedError(f"{fields.where}: {key} is not an object")
        merged |= value
    return Fields(merged, f"{fields.where}, RoPE settings")


def _original(fields: Fields, context: int) -> int:
    return fields.integer("original_max_position_embeddings", context)


def _resolve(settings: Fields, kind: str, dim: int, theta: float, context: int, original: int) -> Rope:
    if kind in ("default", "dynamic"):
        return plain_rope(dim, theta)
    if kind == "linear":
        return linear_rope(dim, theta, settings.number("factor"))
    if kind == "llama3":
        low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
        return llama3_rope(dim, theta, settings.number("factor"), low, high, original)
    if kind == "yarn":
        return _yarn(settings, dim, theta, context, original)
    if kind == "longrope":
        factor = settings.number("factor", context / original)
        scale = settings.number("attention_factor", longrope_scale(factor, original))
        factors = settings.values.get("short_factor")
        if not isinstance(factors, list) or not all(isinstance(f, int | float) for f in factors):
            raise DamagedError(f"{settings.where}: short_factor is not a list of numbers")
        return factored_rope(dim, theta, factors, scale)
    raise CheckpointError(
        f"{settings.where}: RoPE scaling of type {kind} is not supported",
        f"supported: {', '.join(ROPE_TYPES)}, and {', '.join(_UP_TO_ORIGINAL)} up to the original context",
    )


def _yarn(settings: Fields, dim: int, theta: float, context: int, original: int) -> Rope:
    factor = settings.number("factor", context / original)
    scale = settings.maybe_number("attention_factor")
    weight, all_dim = settings.maybe_number("mscale"), settings.maybe_number("mscale_all_dim")
    if scale is None and weight and all_dim:
        scale = yarn_mscale(factor, weight) / yarn_mscale(factor, all_dim)
    return yarn_rope(
        dim,
        theta,
        factor,
        original,
        attention_factor=scale,
        beta_fast=settings.number("beta_fast", 32.0),
        beta_slow=settings.number("beta_slow", 1.0),
        truncate=settings.flag("truncate", True),
    )
