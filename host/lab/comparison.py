"""The lab: every drafter and tree size on the same prompts, compared by what they get accepted.

Each prompt is decoded once, plainly. Drafters are then tried against that text (`ScriptedSession`), which
under
`match` gives exactly the rounds a real run has, without its target passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.features import FeatureReader
from hexgraft.host.lab.prompts import LabPrompt
from hexgraft.host.lab.scripted_session import ScriptedSession
from hexgraft.host.session import Floats, Session
from hexgraft.host.stats import Stats, Tally
from hexgraft.models.errors import DecodeError, UsageError

_SHOWN = 33
"""Characters by which a message names a prompt."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A prompt and what the target says to it, plainly decoded. `features` [n, F] are those of its positions
    but the last, where the target gives any to a draft head."""

    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    features: Floats | None = None


@dataclass(slots=True)
class LabRow:
    """A drafter at one tree size, summed over transcripts of one category, or of all."""

    drafter: str
    tree_size: int
    category: str
    tokens: int = 0
    rounds: int = 0
    nodes: int = 0
    accepted: int = 0
    draft_passes: int = 0
    by_depth: list[Tally] = field(default_factory=list)
    by_rank: list[Tally] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def passes_per_round(self) -> float:
        return self.draft_passes / self.rounds if self.rounds else 0.0

    @property
    def efficiency(self) -> float:
        """Part of the drafted nodes, roots left out, that were accepted."""
        drafted = self.nodes - self.rounds
        return self.accepted / drafted if drafted else 0.0

    def add(self, stats: Stats) -> None:
        self.tokens += stats.tokens
        self.rounds += stats.rounds
        self.nodes += stats.nodes
        self.accepted += sum(tally.accepted for tally in stats.by_depth)
        self.draft_passes += stats.draft_passes
        merge_tallies(self.by_depth, stats.by_depth)
        merge_tallies(self.by_rank, stats.by_rank)

    def as_dict(self) -> dict[str, Any]:
        return {
            "drafter": self.drafter,
            "tree_size": self.tree_size,
            "category": self.category,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "tokens_per_round": round(self.tokens_per_round, 4),
            "draft_passes_per_round": round(self.passes_per_round, 4),
            "node_efficiency": round(self.efficiency, 4),
            "acceptance_by_depth": [[t.accepted, t.tried] for t in self.by_depth],
            "acceptance_by_rank": [[t.accepted, t.tried] for t in self.by_rank],
        }


def merge_tallies(into: list[Tally], more: list[Tally]) -> None:
    """Add tallies place by place."""
    while len(into) < len(more):
        into.append(Tally())
    for mine, other in zip(into, more, strict=False):
        mine.tried += other.tried
        mine.accepted += other.accepted


class FeatureKeeper(NoDraft):
    """Plain decoding that keeps the target's features, position after position."""

    def __init__(self, features: int) -> None:
        self.features = features
        self.kept: list[Floats] = []
        self.reader: FeatureReader | None = self

    def align(self, keep: int) -> int:
        return keep

    def read(self, tokens: Sequence[int], start: int, features: Floats) -> None:
        self.kept.append(features)

    def save(self) -> NoReturn:
        raise DecodeError("a keeper of features has no cache")

    def restore(self, cache: Any) -> NoReturn:
        raise DecodeError("a keeper of features has no cache")


def check_prompts(prompts: Sequence[LabPrompt], encode: Callable[[str], list[int]], capacity: int) -> None:
    """Raises UsageError, before any is decoded, for a prompt that a context of `capacity` does not hold."""
    for number, prompt in enumerate(prompts, 1):
        count = len(encode(prompt.text))
        if count > capacity:
            raise UsageError(
                f"prompt {number}, {prompt.text[:_SHOWN]!r}, has {count} tokens, "
                f"the context holds {capacity}",
                "shorten it or leave it out, or export with a larger --context",
            )


def transcribe(
    session: Session,
    prompts: Iterable[LabPrompt],
    encode: Callable[[str], list[int]],
    options: DecodeOptions,
) -> Iterator[Transcript]:
    """Decode every prompt plainly; `check_prompts` tells beforehand which ones cannot be."""
    for prompt in prompts:
        ids = encode(prompt.text)
        keeper = FeatureKeeper(session.spec.features) if session.spec.features else None
        decoder = Decoder(session, keeper or NoDraft(), options)
        decoder.begin(ids)
        answer = tuple(token for current in decoder.rounds() for token in current.tokens)
        features = np.concatenate(keeper.kept) if keeper is not None else None
        yield Transcript(prompt.category, tuple(ids), answer, features)


def measure(
    session: Session, transcript: Transcript, drafter: Drafter, tree_size: int, options: DecodeOptions
) -> Stats:
    """The figures of a run of `drafter` on a transcript. `options` are those the transcript was made with."""
    script = ScriptedSession(session.spec, [*transcript.prompt, *transcript.answer], transcript.features)
    limits = DecodeOptions(
        max_tokens=options.max_tokens, tree_size=tree_size, tree_depth=options.tree_depth, stops=options.stops
    )
    decoder = Decoder(script, drafter, limits)
    decoder.begin(transcript.prompt)
    for _ in decoder.rounds():
        pass
    return decoder.stats


def compare_drafters(
    session: Session,
    transcripts: Sequence[Transcript],
    drafters: dict[str, Callable[[], Drafter]],
    sizes: Sequence[int],
    options: DecodeOptions,
    progress: Callable[[], None],
) -> list[LabRow]:
    """A row per drafter, size and category, and one over all of them. `progress` is called after each run."""
    rows: list[LabRow] = []
    for name, make in drafters.items():
        drafter = make()
        for size in sizes:
            total = LabRow(name, size, "all")
            by_category: dict[str, LabRow] = {}
            for transcript in transcripts:
                stats = measure(session, transcript, drafter, size, options)
                row = by_category.setdefault(transcript.category, LabRow(name, size, transcript.category))
                row.add(stats)
                total.add(stats)
                progress()
            rows += [total, *by_category.values()]
        drafter.close()
    return rows
