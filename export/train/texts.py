"""Many texts read and continued at once by a TorchGraph: a cache row and a length for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hexgraft.export.train.torch_graph import Attend, TorchGraph
from hexgraft.host.rope import rope_table

functional = torch.nn.functional

_STEP = 64
"""Columns a cache grows by. All of it takes part in every product: a part of it would be copied first."""

_READ = 16
"""Prompts read at a time: attention takes a square of their length each."""


class TextBatch:
    """B texts of one target. `prefill` takes the prompts, `step` a token of every text.

    `outputs` begins with the logits and the state after the last norm. A text's token at position p has its
    K/V in column p of its row, so a text is computed as if it were alone.
    """

    def __init__(self, graph: TorchGraph, texts: int, outputs: Sequence[str]) -> None:
        self.graph, self.outputs = graph, list(outputs)
        model = graph.model
        # Keys lie as in the graph, a column a position: a product with them is then twice as fast.
        shapes = (
            (texts, model.kv_heads, model.head_dim, _STEP),
            (texts, model.kv_heads, _STEP, model.head_dim),
        )
        self._kv = [
            [torch.zeros(shape, dtype=graph.dtype, device=graph.device) for shape in shapes]
            for _ in range(model.layers)
        ]
        self.lengths = torch.zeros(texts, dtype=torch.long, device=graph.device)
        self._tables = {}
        for local, entry in (("", model.rope), ("_local", model.local_rope)):
            if entry is not None:
                table = rope_table(entry, model.context)
                for name, array in (("cos", table.cos), ("sin", table.sin)):
                    self._tables[f"position_ids_{name}{local}"] = torch.from_numpy(array).to(graph.device)

    def prefill(self, tokens: Tensor, lengths: Tensor, take: Callable[[slice, list[Tensor]], None]) -> Tensor:
        """Read prompts [B, P], padded behind, some rows at a time. Returns the logits after each [B, vocab].

        `take` gets the values of some rows as [rows, P, ...], but for the first of `outputs`, the logits;
        those of pads are rubbish.
        """
        last = []
        self._grow(int(lengths.max()))
        self.lengths = lengths.clone()
        for start in range(0, len(tokens), _READ):
            rows = slice(start, min(start + _READ, len(tokens)))
            width = int(lengths[rows].max())
            *states, final = self._read(rows, tokens[rows, :width])
            take(rows, [final, *states])
            ends = final[torch.arange(len(final)), lengths[rows] - 1]
            last.append(self.graph.logits(ends))
        return torch.cat(last)

    def _read(self, rows: slice, tokens: Tensor) -> list[Tensor]:
        texts, width = tokens.shape
        columns = torch.arange(width, device=tokens.device)
        limits = self._masks(columns[:, None] - columns)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            queries, keys, values = (self._by_head(x, texts, width) for x in (q, k, v))
            key_cache, value_cache = self._kv[layer]
            key_cache[rows, :, :, :width] = keys.transpose(2, 3)
            value_cache[rows, :, :width] = values
            group = queries.shape[1] // keys.shape[1]
            keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
            mask = limits[self.graph.is_local(layer)]
            mixed = self._mix(queries, keys.transpose(2, 3), values, mask)
            return mixed.transpose(1, 2).reshape(texts * width, -1).float()

        outputs = [*self.outputs[2:], self.outputs[1]]
        found = self._run(tokens.reshape(-1), columns.repeat(texts), attend, outputs)
        return [value.reshape(texts, width, -1) for value in found]

    def step(self, tokens: Tensor) -> list[Tensor]:
        """One more token [B] of every text; each value comes back as [B, ...]."""
        texts, positions = tokens.shape[0], self.lengths
        self._grow(int(positions.max()) + 1)
        columns = torch.arange(self._kv[0][1].shape[2], device=tokens.device)
        limits = self._masks((positions[:, None] - columns)[:, None, None])
        own = torch.arange(texts, device=tokens.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            model = self.graph.model
            keys, values = self._kv[layer]
            keys[own, :, :, positions] = k.view(texts, model.kv_heads, -1).to(keys.dtype)
            values[own, :, positions] = v.view(texts, model.kv_heads, -1).to(values.dtype)
            # The queries of one key/value head are that head's rows: nothing is repeated.
            queries = q.view(texts, model.kv_heads, -1, model.head_dim).to(keys.dtype)
            mask = limits[self.graph.is_local(layer)]
            return self._mix(queries, keys, values, mask).reshape(texts, -1).float()

        found = self._run(tokens, positions, attend, self.outputs)
        self.lengths = positions + 1
        return [value.reshape(texts, -1) for value in found]

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the texts only."""
        self._kv = [[cache[rows] for cache in pair] for pair in self._kv]
        self.lengths = self.lengths[rows]

    def _run(self, tokens: Tensor, positions: Tensor, attend: Attend, outputs: Sequence[str]) -> list[Tensor]:
        tables = {name: table[positions][None, None] for name, table in self._tables.items()}
        return self.graph.run({"input_ids": tokens[None].long(), **tables}, outputs, attend)

    def _by_head(self, x: Tensor, texts: int, width: int) -> Tensor:
        rows = x.view(texts, width, -1, self.graph.model.head_dim).to(self.graph.dtype)
        return rows.transpose(1, 2)

    def _grow(self, columns: int) -> None:
        more = -(-(columns - self._kv[0][1].shape[2]) // _STEP) * _STEP
        if more > 0:
            pad = functional.pad
            self._kv = [[pad(keys, (0, more)), pad(values, (0, 0, 0, more))] for keys, values in self._kv]

    def _masks(self, gap: Tensor) -> dict[bool, Tensor]:
        """What is added to scores of a row `gap` positions behind a column, without a window and with it."""
        masks = {False: torch.zeros(gap.shape, device=gap.device).masked_fill(gap < 0, -1e30)}
        window = self.graph.model.window
        if window is not None:
            masks[True] = masks[False].masked_fill(gap >= window, -1e30)
        return masks

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Softmax of the products of queries [B, H, R, dim] and keys [B, H, dim, L], times values."""
        shape = queries.shape
        scores = torch.bmm(queries.flatten(0, 1), keys.flatten(0, 1)).float().view(*shape[:3], -1)
        cap = self.graph.softcap
        if cap is not None:
            scores = torch.tanh(scores) * cap
        shares = torch.softmax(scores + mask, -1).to(values.dtype)
        return torch.bmm(shares.flatten(0, 1), values.flatten(0, 1)).view(shape)
