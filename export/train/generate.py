"""Training text written by the target itself, with the states a draft head reads, in files that merge.

The unit is a wave: a fixed number of requests answered side by side. A wave is a function of the seed and its
number alone, so shards and resumed runs make the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from hexgraft.export.train.seeds import Request, requests
from hexgraft.export.train.texts import TextBatch
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.host.atomic_file import write_whole

_PROMPT_ROWS = 100
"""Tokens of a prompt, for sizing."""
_MIN_P = 0.05
"""Sampling leaves out tokens less likely than this part of the likeliest."""
_SHRINK = 0.8
"""Rows are dropped once only this part of them is still being written."""
_TAIL = 0.08
"""A wave ends when so few of its texts go on: a pass over them costs nearly what a full one does."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How texts are made: `texts` a wave, at most `new_tokens` an answer, prompts of at most `prompt_tokens`.

    `features` are layers as in a manifest: the residual stream after so many.
    """

    seed: int
    features: tuple[int, ...]
    texts: int = 256
    new_tokens: int = 256
    prompt_tokens: int = 320
    extra: tuple[str, ...] = ()

    def wave_bytes(self, hidden: int) -> int:
        """Bytes of a wave at the most but for long prompts, of a target with states of `hidden` numbers."""
        return self.texts * (self.new_tokens + _PROMPT_ROWS) * 2 * (len(self.features) + 1) * hidden


def wave_path(folder: Path, number: int) -> Path:
    """Where a wave lies."""
    return folder / f"wave-{number:05d}.safetensors"


def wave_numbers(folder: Path) -> list[int]:
    """The numbers of the waves that lie in a folder."""
    parts = (file.stem.removeprefix("wave-") for file in folder.glob("wave-*.safetensors"))
    return [int(part) for part in parts if part.isdecimal()]


def waves(plan: Plan, fits: Callable[[str], bool]) -> Iterator[list[Request]]:
    """The requests of every wave, of those whose message fits."""
    source = (request for request in requests(plan.seed, plan.extra) if fits(request.message))
    while True:
        yield list(islice(source, plan.texts))


def generate_wave(
    graph: TorchGraph,
    plan: Plan,
    number: int,
    asked: Sequence[Request],
    encode: Callable[[str], list[int]],
    stops: Sequence[int],
    progress: Callable[[int], None],
) -> bytes:
    """Answer the requests of a wave, as a safetensors file. `progress` is told tokens as they come.

    It holds `tokens` of all texts one after the other, their `lengths`, how many are `prompts`, and `states`
    [rows, features + 1, d] float16, the one after the last norm first, of every token but a text's last.
    """
    prompts = [encode(request.message) for request in asked]
    with torch.inference_mode():
        writer = _Writer(graph, plan, number, prompts, [request.temperature for request in asked])
        writer.run(stops, progress)
    return writer.file()


class _Writer:
    """The texts of one wave while they are written."""

    def __init__(
        self, graph: TorchGraph, plan: Plan, number: int, prompts: list[list[int]], heat: list[float]
    ) -> None:
        self.graph, self.plan, self.prompts = graph, plan, prompts
        layers = graph.model.layers
        states = [f"layers.{n - 1}.out" if n < layers else "norm.out" for n in plan.features]
        self.outputs = ["logits", "norm.out", *states]
        self.longest = max(map(len, prompts))
        self.texts = [list(prompt) for prompt in prompts]
        shape = (len(prompts), self.longest + plan.new_tokens, len(plan.features) + 1, graph.model.hidden)
        self.states = torch.zeros(shape, dtype=torch.float16)
        self.heat = torch.tensor(heat, device=graph.device)
        self.random = torch.Generator(device=graph.device).manual_seed((plan.seed << 20) + number)

    def run(self, stops: Sequence[int], progress: Callable[[int], None]) -> None:
        rows = torch.arange(len(self.prompts))
        batch = TextBatch(self.graph, len(self.prompts), self.outputs)
        tokens = self._read(batch)
        ended = torch.tensor(list(stops), device=self.graph.device)
        going = torch.ones(len(rows), dtype=torch.bool)
        for step in range(self.plan.new_tokens):
            chosen = tokens.tolist()
            for place, row in enumerate(rows.tolist()):
                if going[place]:
                    self.texts[row].append(chosen[place])
            progress(int(going.sum()))
            going &= ~torch.isin(tokens, ended).cpu()
            if going.sum() <= _TAIL * len(self.prompts) or step + 1 == self.plan.new_tokens:
                return
            if going.sum() < _SHRINK * len(rows):
                kept = going.nonzero()[:, 0]
                rows, tokens, going = rows[kept], tokens[kept], going[kept]
                batch.keep(kept)
                self.heat = self.heat[kept]
            logits, *states = batch.step(tokens)
            self.states[rows, batch.lengths.cpu() - 1] = torch.stack(states, 1).half().cpu()
            tokens = self._choose(logits)

    def _read(self, batch: TextBatch) -> Tensor:
        """Read the prompts, sixteen at a time at most: their logits are [rows, vocab]."""
        width, device = self.longest, self.graph.device
        ids = torch.zeros(len(self.prompts), width, dtype=torch.long, device=device)
        for row, prompt in enumerate(self.prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
        lengths = torch.tensor([len(prompt) for prompt in self.prompts], device=device)
        last = batch.prefill(ids, lengths, self._keep_states)
        return self._choose(last)

    def _keep_states(self, rows: slice, states: list[Tensor]) -> None:
        self.states[rows, : states[0].shape[1]] = torch.stack(states, 2).half().cpu()

    def _choose(self, logits: Tensor) -> Tensor:
        """The next token of every row: the best one, or a draw at the row's temperature."""
        greedy = logits.argmax(-1)
        warm = self.heat > 0
        if not bool(warm.any()):
            return greedy
        scaled = logits[warm] / self.heat[warm, None]
        floor = scaled.amax(-1, keepdim=True) + float(np.log(_MIN_P))
        shares = torch.softmax(scaled.masked_fill(scaled < floor, -torch.inf), -1)
        greedy[warm] = torch.multinomial(shares, 1, generator=self.random)[:, 0]
        return greedy

    def file(self) -> bytes:
        """Texts one after the other; a text of n + 1 tokens has n rows of states."""
        states = [self.states[row, : len(text) - 1] for row, text in enumerate(self.texts)]
        arrays: dict[str, NDArray[Any]] = {
            "tokens": np.concatenate([np.array(text, np.int32) for text in self.texts]),
            "lengths": np.array([len(text) for text in self.texts], np.int32),
            "prompts": np.array([len(prompt) for prompt in self.prompts], np.int32),
            "states": torch.cat(states).numpy(),
        }
        return save(arrays)


def write_wave(folder: Path, number: int, data: bytes) -> None:
    """Put a wave at its place; HexgraftError when the disk is full."""
    write_whole(wave_path(folder, number), data, replace=True)
