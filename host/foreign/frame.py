"""What one pass of a width reads and writes, in the numbers its graph takes: filled in place, pass after
pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hexgraft.host.foreign.cache import Layer
from hexgraft.host.foreign.encoding import Stored, dtype_of, to_real, to_stored
from hexgraft.host.layout import vendor_of
from hexgraft.host.manifest import Encoding, GraphEntry, ModelEntry
from hexgraft.host.session import Floats, Visibility
from hexgraft.models.rope import RopeTable


class Frame:
    """The inputs and outputs of the graphs of one width T over CL columns, cache apart.

    Graphs that give the logits of their last row alone want their tokens at the end: `first` is where the
    rows of a pass of `count` tokens begin.
    """

    def __init__(self, model: ModelEntry, chain: Sequence[GraphEntry], rope: RopeTable) -> None:
        head = chain[0]
        self.width, self.past = head.width or 0, head.capacity or 0
        self.last = any(vendor_of(graph).last_logits for graph in chain)
        self._model, self._encodings = model, _merged(chain)
        width, half, columns = self.width, model.head_dim // 2, self.width + self.past
        self._tables = (
            to_stored(rope.cos, self._encoding("position_ids_cos")),
            to_stored(rope.sin, self._encoding("position_ids_sin")),
        )
        ends = np.array([0.0, model.mask_value])
        self._seen, self._hidden = to_stored(ends, self._encoding("attention_mask"))
        self.ids = np.zeros((1, width), np.int32)
        self.mask: Stored = np.full((1, 1, width, columns), self._hidden)
        self.cos: Stored = np.zeros((1, 1, width, half), self._tables[0].dtype)
        self.sin: Stored = np.zeros((1, 1, width, half), self._tables[1].dtype)
        rows = 1 if self.last else width
        self.stored_logits: Stored = np.zeros((1, rows, model.vocab), dtype_of(self._encoding("logits")))
        self.staged = [
            Layer(
                np.zeros((model.kv_heads, model.head_dim, width), model.kv_dtype),
                np.zeros((model.kv_heads, width, model.head_dim), model.kv_dtype),
            )
            for _ in range(model.layers)
        ]

    def _encoding(self, name: str) -> Encoding | None:
        return self._encodings.get(name)

    def first(self, count: int) -> int:
        return self.width - count if self.last else 0

    def fill(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> None:
        """Write the inputs of a pass. Pad rows hold token 0 at the first row's position and see only
        themselves."""
        count = len(tokens)
        own = slice(self.first(count), self.first(count) + count)
        self.ids.fill(0)
        self.ids[0, own] = tokens
        places = np.full(self.width, positions[0], np.intp)
        places[own] = positions
        self.cos[0, 0], self.sin[0, 0] = self._tables[0][places], self._tables[1][places]
        mask = self.mask[0, 0]
        mask.fill(self._hidden)
        mask[own, : visible.prefix] = self._seen
        if visible.slots.size:
            mask[own, visible.slots] = np.where(visible.seen, self._seen, self._hidden)
        rows = mask[:, self.past :]
        np.fill_diagonal(rows, self._seen)
        rows[own, own][visible.rows] = self._seen

    def tensors(self, cache: Sequence[Layer]) -> tuple[Mapping[str, Stored], Mapping[str, Stored]]:
        """Inputs and outputs by name, in the graphs' shapes."""
        inputs: dict[str, Stored] = {
            "input_ids": self.ids,
            "attention_mask": self.mask,
            "position_ids_cos": self.cos,
            "position_ids_sin": self.sin,
        }
        outputs: dict[str, Stored] = {"logits": self.stored_logits}
        for i, (past, rows) in enumerate(zip(cache, self.staged, strict=True)):
            inputs[f"past_key_{i}_in"] = past.keys[:, None]
            inputs[f"past_value_{i}_in"] = past.values[:, None]
            outputs[f"past_key_{i}_out"] = rows.keys[:, None]
            outputs[f"past_value_{i}_out"] = rows.values[:, None]
        return inputs, outputs

    def logits(self, rows: Sequence[int]) -> Floats:
        """Logits [R, vocab] of rows of the last pass, which must be among those the graph gives."""
        places = [0] * len(rows) if self.last else list(rows)
        return to_real(self.stored_logits[0, places], self._encoding("logits"))


def _merged(chain: Sequence[GraphEntry]) -> dict[str, Encoding]:
    """The encodings of a width's parts; where two parts take one tensor, they agree (`host/layout.py`)."""
    return {name: encoding for graph in chain for name, encoding in vendor_of(graph).encodings.items()}
