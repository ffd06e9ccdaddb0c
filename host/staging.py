"""The buffers a pass reads and writes, allocated once and shared by every width."""

from __future__ import annotations

import numpy as np

from hexgraft.host.layout import is_joined
from hexgraft.host.manifest import ModelEntry
from hexgraft.host.session import Floats, States
from hexgraft.models.errors import DecodeError


class Stage:
    """Inputs and outputs of a pass at one width: views of `Staging`, never copies."""

    __slots__ = (
        "cos",
        "cos_local",
        "features",
        "hidden",
        "hidden_in",
        "ids",
        "keys",
        "logits",
        "sin",
        "sin_local",
        "values",
    )

    def __init__(self, staging: Staging, width: int) -> None:
        m = staging.model
        half = m.head_dim // 2
        self.ids = staging.ids[:width].reshape(1, width)
        self.cos = staging.cos[: width * half].reshape(1, 1, width, half)
        self.sin = staging.sin[: width * half].reshape(1, 1, width, half)
        self.cos_local = self.sin_local = None
        if m.local_rope is not None:
            self.cos_local = staging.cos_local[: width * half].reshape(1, 1, width, half)
            self.sin_local = staging.sin_local[: width * half].reshape(1, 1, width, half)
        self.logits = staging.logits[: width * m.logit_size].reshape(1, width, m.logit_size)
        self.features = self.hidden_in = None
        if m.head is not None:
            size = m.head.feature_size
            self.features = staging.features[: width * size].reshape(1, width, size)
            self.hidden_in = staging.hidden_in[: width * m.hidden].reshape(1, width, m.hidden)
        rows = staging.cache_rows(width)
        size = m.layers * m.kv_heads * m.head_dim * rows
        self.keys = staging.keys[:size].reshape(m.layers, m.kv_heads, m.head_dim, rows)
        self.values = staging.values[:size].reshape(m.layers, m.kv_heads, rows, m.head_dim)
        self.hidden = None
        if staging.hidden is not None:
            self.hidden = staging.hidden[: width * m.hidden_size].reshape(1, width, m.hidden_size)

    def take(self, states: States | None, count: int) -> None:
        """Write what a draft head's rows go on from; pads get zeros. Raises DecodeError where it is missing,
        of another shape, or nothing takes it."""
        if self.features is None or self.hidden_in is None:
            if states is not None:
                raise DecodeError("this model is no draft head and takes no states")
            return
        wanted = [(count, into.shape[2]) for into in (self.features, self.hidden_in)]
        if states is None or [states.features.shape, states.hidden.shape] != wanted:
            raise DecodeError(f"a draft head's pass of {count} rows was not given the states of {count} rows")
        for into, rows in ((self.features, states.features), (self.hidden_in, states.hidden)):
            into[0, :count] = rows
            into[0, count:] = 0


class Staging:
    """One set of flat buffers, as large as the widest pass so far; every width is a view of them."""

    def __init__(self, model: ModelEntry) -> None:
        self.model = model
        self._width = 0
        self._views: dict[int, Stage] = {}
        self._mask = np.empty(0, np.float32)
        self._local_mask = np.empty(0, np.float32)

    def grow(self, width: int) -> bool:
        """Make room for `width` rows. True if the buffers moved."""
        if width <= self._width:
            return False
        m = self.model
        self._width = width
        self._views.clear()
        self.ids = np.zeros(width, np.int32)
        self.cos = np.empty(width * m.head_dim // 2, np.float32)
        self.sin = np.empty_like(self.cos)
        if m.local_rope is not None:
            self.cos_local = np.empty_like(self.cos)
            self.sin_local = np.empty_like(self.cos)
        self.logits = np.empty(width * m.logit_size, np.float32)
        if m.head is not None:
            self.features = np.empty(width * m.head.feature_size, np.float32)
            self.hidden_in = np.empty(width * m.hidden, np.float32)
        self.keys = np.empty(m.layers * m.kv_heads * m.head_dim * self.cache_rows(width), np.float32)
        self.values = np.empty_like(self.keys)
        self.hidden = np.empty(width * m.hidden_size, np.float32) if m.hidden_size else None
        return True

    def cache_rows(self, width: int) -> int:
        """How many of a pass's K/V rows lie here: all, or none where they are written behind the cache's."""
        return 0 if is_joined(self.model) else width

    def at(self, width: int) -> Stage:
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = Stage(self, width)
        return view

    def mask(self, width: int, capacity: int) -> Floats:
        self._mask = self._room(self._mask, capacity)
        return self._mask[: width * (capacity + width)].reshape(1, 1, width, capacity + width)

    def local_mask(self, width: int, capacity: int) -> Floats:
        """The mask of layers with a window, where the model has any."""
        self._local_mask = self._room(self._local_mask, capacity)
        return self._local_mask[: width * (capacity + width)].reshape(1, 1, width, capacity + width)

    def _room(self, mask: Floats, capacity: int) -> Floats:
        """The buffer, or a larger one if the cache has grown: a context may be far longer than any text."""
        size = self._width * (capacity + self._width)
        return mask if len(mask) >= size else np.empty(size, np.float32)
