"""The rotary embedding GGUF metadata asks for, its scaling resolved into plain frequencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hexgraft.models.config import Rope
from hexgraft.models.errors import CheckpointError, DamagedError
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.json_file import Fields
from hexgraft.models.partial_rope import padded_rope
from hexgraft.models.rope_scaling import factored_rope, linear_rope, plain_rope, yarn_context, yarn_rope

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of divisors of frequencies: Llama 3's scaling, and longrope's two sets."""

PARTIAL = ("phi3", "qwen2")
_SCALINGS = ("none", "linear", "yarn", "longrope")
_GEMMA3_LOCAL_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class GgufRope:
    """`context` is as far as the frequencies are right, `limit` why that is less than the checkpoint's."""

    rope: Rope
    local: Rope | None
    context: int
    limit: str | None
    rotated: int | None


def rope_from_gguf(file: GgufFile, fields: Fields, family: str, head_dim: int) -> GgufRope:
    """Read `rope.*` keys and factor tensors. Raises CheckpointError."""
    context = fields.integer(f"{family}.context_length")
    dim = fields.integer(f"{family}.rope.dimension_count", head_dim)
    # llama.cpp's interleaved rows of a part of a head are not known here.
    if dim > head_dim or dim % 2 or head_dim % 2 or (dim < head_dim and family not in PARTIAL):
        raise CheckpointError(
            f"{file.path}: RoPE over {dim} of {head_dim} head dimensions is not supported in {family}",
            f"parts of a head may be rotated in {', '.join(PARTIAL)}",
        )
    rotated = dim if dim < head_dim else None
    theta = fields.number(f"{family}.rope.freq_base", 10000.0)
    original = fields.integer(f"{family}.rope.scaling.original_context_length", context)
    if FACTORS[1] in file.tensors:
        scale = fields.number(f"{family}.rope.scaling.attn_factor", 1.0)
        rope = padded_rope(factored_rope(dim, theta, _factors(file, FACTORS[1], dim), scale), head_dim)
        limit = f"RoPE scaling of type longrope is right up to its original context of {original} only"
        return GgufRope(rope, None, min(context, original), limit if original < context else None, rotated)
    local = None
    if family == "gemma3":
        local = plain_rope(dim, fields.number("gemma3.rope.freq_base_swa", _GEMMA3_LOCAL_THETA))
    rope = padded_rope(_resolve(file, fields, family, dim, theta, original), head_dim)
    if fields.text(f"{family}.rope.scaling.type", "none") == "yarn" and FACTORS[0] not in file.tensors:
        factor = fields.number(f"{family}.rope.scaling.factor", 1.0)
        context = yarn_context(context, factor, original)
    return GgufRope(rope, local, context, None, rotated)


def _resolve(file: GgufFile, fields: Fields, family: str, dim: int, theta: float, original: int) -> Rope:
    kind = fields.text(f"{family}.rope.scaling.type", "none")
    factor = fields.number(f"{family}.rope.scaling.factor", fields.number(f"{family}.rope.scale_linear", 1.0))
    if FACTORS[0] in file.tensors:
        return factored_rope(dim, theta, _factors(file, FACTORS[0], dim))
    if kind == "linear" or (
        kind == "none" and factor != 1.0 and f"{family}.rope.scale_linear" in file.fields
    ):
        return linear_rope(dim, theta, factor)
    if kind in ("none", "longrope"):
        return plain_rope(dim, theta)
    if kind == "yarn":
        return yarn_rope(
            dim,
            theta,
            factor,
            original,
            attention_factor=fields.maybe_number(f"{family}.rope.scaling.attn_factor"),
            beta_fast=fields.number(f"{family}.rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number(f"{family}.rope.scaling.yarn_beta_slow", 1.0),
        )
    raise CheckpointError(
        f"{file.path}: RoPE scaling of type {kind} is not supported", f"supported: {', '.join(_SCALINGS)}"
    )


def _factors(file: GgufFile, name: str, dim: int) -> list[float]:
    tensor = file.tensors[name]
    if tensor.shape != (dim // 2,) or tensor.kind.name != "F32":
        raise DamagedError(f"tensor {name} of {file.path} is not {dim // 2} factors in F32")
    factors: list[float] = file.rows(tensor, 0, 1).view(np.float32)[0].tolist()
    return factors
