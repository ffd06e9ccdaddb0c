"""A session without a graph: a small transformer in numpy, with the cache semantics every session has.

It computes in float64 and returns float32, so that the width of a pass leaves no trace in the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.logits import topk
from hexgraft.host.session import CacheRows, Floats, SessionSpec, TopK, Visibility
from hexgraft.models.errors import DecodeError

Doubles = NDArray[np.float64]


class FakeModel:
    """Weights of two attention layers and an untied head. `noisy` makes a draft that agrees more or less."""

    def __init__(
        self, *, vocab: int = 48, hidden: int = 16, layers: int = 2, gain: float = 2.5, seed: int = 0
    ) -> None:
        rng = np.random.default_rng([seed, 3])
        scale = hidden**-0.5
        self.embed = rng.standard_normal((vocab, hidden))
        self.layers = [
            {
                name: rng.standard_normal((hidden, hidden)) * scale
                for name in ("q", "k", "v", "o", "up", "down")
            }
            for _ in range(layers)
        ]
        self.head = rng.standard_normal((hidden, vocab)) * scale * gain

    def noisy(self, noise: float, seed: int = 1) -> FakeModel:
        """A copy with gaussian noise of this share of every matrix's spread."""
        rng = np.random.default_rng([seed, 5])

        def blur(matrix: Doubles) -> Doubles:
            return matrix + rng.standard_normal(matrix.shape) * noise * matrix.std()

        other = FakeModel(vocab=len(self.embed), hidden=self.embed.shape[1], layers=0)
        other.embed, other.head = blur(self.embed), blur(self.head)
        other.layers = [{name: blur(matrix) for name, matrix in layer.items()} for layer in self.layers]
        return other


class FakeSession:
    """Runs a FakeModel. Keys are rotated by position before they are cached; slots never decide anything."""

    def __init__(
        self,
        model: FakeModel,
        *,
        role: str = "target",
        capacity: int = 640,
        max_width: int = 64,
    ) -> None:
        self.model = model
        vocab, hidden = model.embed.shape
        self.spec = SessionSpec(
            role=role,
            vocab=vocab,
            layers=len(model.layers),
            kv_heads=1,
            head_dim=hidden,
            hidden=hidden,
            capacity=capacity,
            widths=None,
            max_width=max_width,
            provider="fake",
            features=0,
            logits=vocab,
        )
        self.passes = 0
        self._keys = np.zeros((len(model.layers), capacity, hidden))
        self._values = np.zeros_like(self._keys)
        self._staged: tuple[list[Doubles], list[Doubles]] = ([], [])
        self._frequencies = 100.0 ** -(np.arange(hidden // 2) / (hidden // 2))

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> FakeRows:
        count = len(tokens)
        if not 1 <= count <= self.spec.max_width or len(positions) != count or visible.count != count:
            raise DecodeError(f"a pass of {count} rows, {len(positions)} positions, {visible.count} masks")
        if min(positions) < 0 or max(positions) >= self.spec.capacity:
            raise DecodeError(f"position {max(positions)} is beyond the context")
        if visible.prefix > self.spec.capacity or visible.slots.max(initial=0) >= self.spec.capacity:
            raise DecodeError("a pass sees slots beyond the context")
        self.passes += 1
        slots = np.concatenate([np.arange(visible.prefix), visible.slots])
        mask = np.concatenate(
            [np.ones((count, visible.prefix), bool), visible.seen, visible.rows | np.eye(count, dtype=bool)],
            1,
        )
        angles = np.outer(np.asarray(positions), self._frequencies)
        self._staged = ([], [])
        x = self.model.embed[np.asarray(tokens)]
        for layer, weights in enumerate(self.model.layers):
            x = self._layer(x, layer, weights, slots, mask, angles)
        return FakeRows(_norm(x) @ self.model.head)

    def _layer(
        self,
        x: Doubles,
        layer: int,
        weights: dict[str, Doubles],
        slots: NDArray[np.int64],
        mask: NDArray[np.bool_],
        angles: Doubles,
    ) -> Doubles:
        y = _norm(x)
        key, value = _rotate(y @ weights["k"], angles), y @ weights["v"]
        self._staged[0].append(key)
        self._staged[1].append(value)
        keys = np.concatenate([self._keys[layer, slots], key])
        values = np.concatenate([self._values[layer, slots], value])
        scores = _rotate(y @ weights["q"], angles) @ keys.T * x.shape[1] ** -0.5
        scores = np.where(mask, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        x = x + 2 * (shares @ values) @ weights["o"]
        return x + np.maximum(_norm(x) @ weights["up"], 0) @ weights["down"]

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        for layer, (key, value) in enumerate(zip(*self._staged, strict=True)):
            self._keys[layer, list(slots)] = key[list(rows)]
            self._values[layer, list(slots)] = value[list(rows)]

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        src, dst = np.asarray(source, int), np.asarray(target, int)
        if (np.diff(src) <= 0).any() or (np.diff(dst) <= 0).any() or (dst > src).any():
            raise DecodeError("move wants ascending slots, every target at or below its source")
        self._keys[:, dst] = self._keys[:, src]
        self._values[:, dst] = self._values[:, src]

    def reset(self) -> None:
        self._keys.fill(np.nan)
        self._values.fill(np.nan)

    def save(self, count: int) -> CacheRows:
        keys = self._keys[:, :count].transpose(0, 2, 1)[:, None]
        return CacheRows(keys.astype(np.float32), self._values[:, None, :count].astype(np.float32))

    def restore(self, rows: CacheRows) -> None:
        self._keys[:, : rows.count] = rows.keys[:, 0].transpose(0, 2, 1)
        self._values[:, : rows.count] = rows.values[:, 0]

    def close(self) -> None: ...

    def narrowed(self, capacity: int) -> FakeSession:
        """A fresh session of the same model with another capacity."""
        other = FakeSession(self.model, role=self.spec.role, max_width=self.spec.max_width, capacity=capacity)
        other.spec = replace(self.spec, capacity=capacity)
        return other


class FakeRows:
    """The rows of one pass."""

    seconds = 0.0

    def __init__(self, logits: Doubles) -> None:
        self._logits = logits.astype(np.float32)
        self.count = self.width = len(logits)

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        return topk(self._logits if rows is None else self._logits[list(rows)], k, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        return self._logits[row].copy()

    def hidden(self, row: int) -> Floats:
        raise NotImplementedError

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        raise NotImplementedError


def _norm(x: Doubles) -> Doubles:
    scaled: Doubles = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6)
    return scaled


def _rotate(x: Doubles, angles: Doubles) -> Doubles:
    half = x.shape[1] // 2
    first, second = x[:, :half], x[:, half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=1)
