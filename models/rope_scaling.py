"""The ways checkpoints stretch rotary positions, each resolved into plain frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.config import Rope
from hexgraft.models.errors import DamagedError, UnsupportedError

_MOST_DIMENSIONS = 4096
_MOST_POSITIONS = (1 << 31) - 1


def plain_rope(dim: int, theta: float) -> Rope:
    """Frequencies theta ** (-2i / dim) (Su et al., RoFormer, arXiv 2104.09864)."""
    return _rope(dim, _base(dim, theta))


def linear_rope(dim: int, theta: float, factor: float) -> Rope:
    """Every position divided by `factor` (Chen et al., position interpolation, arXiv 2306.15595)."""
    return _rope(dim, _base(dim, theta) / factor)


def factored_rope(dim: int, theta: float, factors: Sequence[float], scale: float = 1.0) -> Rope:
    """Each frequency divided by its own factor: longrope's short factors, and GGUF's rope_freqs tensor."""
    values = np.asarray(factors, np.float64)
    if values.shape != (dim // 2,) or not np.isfinite(values).all() or (values <= 0).any():
        raise DamagedError(f"RoPE factors are not {dim // 2} positive numbers")
    return _rope(dim, _base(dim, theta) / values, scale)


def llama3_rope(dim: int, theta: float, factor: float, low: float, high: float, original: int) -> Rope:
    """Llama 3.1's scaling: waves longer than original/low are stretched, shorter than original/high are kept.

    Between the two the frequency is blended; `original` is the context the model was first trained for.
    """
    if high <= low:
        raise DamagedError(f"RoPE scaling of type llama3 with high_freq_factor {high} not above {low}")
    base = _base(dim, theta)
    turns = original * base / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return _rope(dim, (1 - blend) * base / factor + blend * base)


def yarn_rope(
    dim: int,
    theta: float,
    factor: float,
    original: int,
    *,
    attention_factor: float | None = None,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Rope:
    """YaRN (Peng et al., arXiv 2309.00071): slow dimensions interpolated, fast ones kept, a ramp between.

    `attention_factor` defaults to the paper's 0.1 ln(factor) + 1 and multiplies cos and sin.
    """
    base = _base(dim, theta)

    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    try:
        low, high = correction(beta_fast), correction(beta_slow)
    except (ArithmeticError, ValueError) as error:
        raise DamagedError(f"RoPE scaling of type yarn with betas {beta_fast}, {beta_slow}") from error
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    scale = yarn_mscale(factor) if attention_factor is None else attention_factor
    return _rope(dim, base / factor * ramp + base * (1 - ramp), scale)


def yarn_context(context: int, factor: float, original: int) -> int:
    """Positions a model is right for that YaRN stretches `factor` times beyond `original`; `context` is what
    it says itself, which recipes for longer texts leave as it was."""
    return max(context, min(int(factor * original), _MOST_POSITIONS))


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """The attention factor of a stretch by `factor`, 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_scale(factor: float, original: int) -> float:
    """LongRoPE's attention factor (Ding et al., arXiv 2402.13753)."""
    return 1.0 if factor <= 1 or original <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _base(dim: int, theta: float) -> NDArray[np.float64]:
    if dim > _MOST_DIMENSIONS:
        raise UnsupportedError(f"RoPE over {dim} dimensions, more than the {_MOST_DIMENSIONS} hexgraft takes")
    if not 1 < theta < 1e12:
        raise DamagedError(f"RoPE with a base of {theta:g}, expected more than 1 and less than 1e12")
    frequencies: NDArray[np.float64] = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    return frequencies


def _rope(dim: int, frequencies: NDArray[np.float64], scale: float = 1.0) -> Rope:
    return Rope(dim, tuple(frequencies.tolist()), scale)
