"""Generated waves as training batches: texts with their states, and what the target says after each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.models.errors import UsageError

KINDS = 16
"""Tokens of the target's distribution that are kept for a position."""
_PROMPT_WEIGHT = 0.3
"""What a position of the prompt counts: its text is not the target's own, but its distribution is."""
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Text:
    """One text: `tokens` [n + 1]; `states` [n, features + 1, d] float16, the one after the last norm
    first."""

    tokens: NDArray[np.int32]
    states: NDArray[np.float16]
    prompt: int


@dataclass(frozen=True, slots=True)
class Teacher:
    """For every row of a text the target's likeliest draft tokens: rows of the draft vocabulary
    [n, KINDS], and their probabilities among themselves."""

    ids: Tensor
    shares: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side, padded behind. `tokens` [B, L + 1], `states` [B, L, F, d], `final` [B, L, d].

    `ids`, `shares` [B, L, KINDS] say what follows the token of a row; `weights` [B, L] what the row counts.
    """

    tokens: Tensor
    states: Tensor
    final: Tensor
    ids: Tensor
    shares: Tensor
    weights: Tensor


def read_texts(files: Sequence[Path]) -> list[Text]:
    """The texts of some waves, in order. States stay in their files until a batch reads them: a million
    tokens of a small model have four gigabytes."""
    texts = []
    for file in files:
        try:
            wave = {name: tensor.numpy() for name, tensor in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            raise UsageError(f"cannot read the training data {file}: {error}", f"rm {file}") from error
        ends = np.cumsum(wave["lengths"])
        for number, end in enumerate(ends.tolist()):
            start = end - int(wave["lengths"][number])
            states = wave["states"][start - number : end - number - 1]
            texts.append(Text(wave["tokens"][start:end], states, int(wave["prompts"][number])))
    return texts


def frequent_tokens(texts: Sequence[Text], vocab: int, rows: int) -> NDArray[np.int64]:
    """The ids of the `rows` tokens seen most in the texts, ascending; ties and tokens never seen by id.

    What the target wrote counts in full, prompts a third. Raises as `check_rows`.
    """
    check_rows(rows, vocab)
    counts = np.zeros(vocab)
    for text in texts:
        np.add.at(counts, text.tokens[text.prompt :], 1.0)
        np.add.at(counts, text.tokens[: text.prompt], 1 / 3)
    return np.sort(np.argsort(-counts, kind="stable")[:rows])


def check_rows(rows: int, vocab: int) -> None:
    """Raise UsageError if a target of `vocab` tokens has fewer than a head's `rows`."""
    if rows > vocab:
        raise UsageError(
            f"--vocab {rows} is more than the {vocab} tokens of the target", f"use --vocab {vocab} or less"
        )


def coverage(texts: Sequence[Text], tokens: NDArray[np.int64]) -> float:
    """Part of the tokens the target wrote that are among `tokens`."""
    written = np.concatenate([text.tokens[text.prompt :] for text in texts])
    return float(np.isin(written, tokens).mean())


class Dataset:
    """Texts and the target's distribution over a draft vocabulary at each of their rows."""

    def __init__(self, texts: Sequence[Text], graph: TorchGraph, tokens: NDArray[np.int64]) -> None:
        self.texts = [text for text in texts if len(text.states) >= 3]
        self.rows = int(sum(len(text.states) for text in self.texts))
        self.written = int(sum(len(text.tokens) - text.prompt for text in self.texts))
        self._shared = _shared_tokens(self.texts)
        self._known = torch.zeros(graph.model.vocab, dtype=torch.bool)
        self._known[torch.from_numpy(tokens)] = True
        self._graph, self._head = graph, graph.head[torch.from_numpy(tokens).to(graph.device)]
        self._teachers: dict[int, Teacher] = {}

    def order(self, seed: int, epoch: int, tokens: int) -> list[list[int]]:
        """Batches of an epoch, texts by number: about `tokens` rows each, of similar length, shuffled."""
        rng = np.random.default_rng([seed, epoch])
        lengths = np.array([len(text.states) for text in self.texts]) + rng.uniform(0, 24, len(self.texts))
        batches: list[list[int]] = [[]]
        longest = 0
        for number in np.argsort(-lengths, kind="stable").tolist():
            longest = max(longest, len(self.texts[number].states))
            if batches[-1] and longest * (len(batches[-1]) + 1) > tokens:
                batches.append([])
                longest = len(self.texts[number].states)
            batches[-1].append(number)
        return [batches[place] for place in rng.permutation(len(batches))]

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Some texts, padded to the longest of them, where the target's graph is."""
        texts = [self.texts[number] for number in numbers]
        longest = max(len(text.states) for text in texts)
        kinds = min(KINDS, self._head.shape[0])
        kept, d = texts[0].states.shape[1:]
        tokens = torch.zeros(len(texts), longest + 1, dtype=torch.long)
        states = torch.zeros(len(texts), longest, kept, d)
        ids = torch.zeros(len(texts), longest, kinds, dtype=torch.long)
        shares = torch.zeros(len(texts), longest, kinds)
        weights = torch.zeros(len(texts), longest)
        for row, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            n = len(text.states)
            tokens[row, : n + 1] = torch.from_numpy(text.tokens.astype(np.int64))
            states[row, :n] = torch.from_numpy(text.states).float()
            teacher = self._teacher(number)
            ids[row, :n], shares[row, :n] = teacher.ids.long(), teacher.shares.float()
            weights[row, :n] = self._weights(tokens[row, : n + 1], text.prompt)
        parts = (tokens, states[:, :, 1:], states[:, :, 0], ids, shares, weights)
        return Batch(*(part.to(self._graph.device) for part in parts))

    def _teacher(self, number: int) -> Teacher:
        """Made when a text is first used, so that every process makes those of its own part."""
        if number not in self._teachers:
            final = torch.from_numpy(self.texts[number].states[:, 0])
            self._teachers[number] = _teach(final, self._head, self._graph)
        return self._teachers[number]

    def _weights(self, tokens: Tensor, prompt: int) -> Tensor:
        """1 for rows whose next token the target wrote, less before; 0 where the draft has not got it, and in
        what all prompts begin with."""
        weights = torch.full((len(tokens) - 1,), 1.0)
        weights[: prompt - 1] = _PROMPT_WEIGHT
        weights[: self._shared] = 0
        return weights * self._known[tokens[1:]]


def _shared_tokens(texts: Sequence[Text]) -> int:
    """How many tokens all prompts have in common at their beginning: the template's, or a system prompt."""
    count = min((text.prompt - 1 for text in texts), default=0)
    first = texts[0].tokens if texts else np.zeros(0, np.int32)
    for text in texts:
        differ = np.flatnonzero(text.tokens[:count] != first[:count])
        count = int(differ[0]) if differ.size else count
    return count


def _teach(final: Tensor, head: Tensor, graph: TorchGraph) -> Teacher:
    ids, shares = [], []
    with torch.inference_mode(), torch.autocast(graph.device, enabled=False):
        for block in torch.split(final.float().to(graph.device), _BLOCK):
            logits = graph.logits(block, head)
            best = logits.topk(min(KINDS, head.shape[0]))
            ids.append(best.indices.int().cpu())
            shares.append(torch.softmax(best.values, -1).half().cpu())
        return Teacher(torch.cat(ids), torch.cat(shares))


def wave_files(folder: Path, count: int | None = None) -> Iterator[Path]:
    """Waves of a folder from the first on without a gap, at most `count`."""
    from hexgraft.export.train.generate import wave_path

    number = 0
    while (count is None or number < count) and wave_path(folder, number).is_file():
        yield wave_path(folder, number)
        number += 1
