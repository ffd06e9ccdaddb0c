"""The trace of a run: JSON lines that tell every round's tree, what was accepted, how sure the target was,
and where the time went."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import Decoder, Round
from hexgraft.host.layout import is_joined
from hexgraft.host.sampling import Sampling
from hexgraft.host.stats import Stats
from hexgraft.host.tree import ROOT, TokenTree, TreeBuilder
from hexgraft.host.walk import TokenLogprob
from hexgraft.models.errors import HexgraftError

FORMAT = 2
"""Readers accept exactly this version; there is no compatibility code."""

TOP_GREEDY, TOP_SAMPLED = 5, 20
"""Candidates recorded a judged node. Draws come from further down, so they get more."""

Texts = dict[int, str]


class TraceError(HexgraftError):
    """A trace that is missing, damaged, of another version, or inconsistent in itself."""


class Record(msgspec.Struct, forbid_unknown_fields=True, tag_field="record"):
    """One line of a trace. `texts` shows the tokens that no earlier line has mentioned."""


class Header(Record, tag="header"):
    """The first line: what ran, on what, and the prompt's tokens. No path and no text but the tokens'.

    `precision` is that of the target's graph for the CPU, "" where it has none; `joined` whether its rows lie
    behind the cache's slots.
    """

    format: int
    hexgraft: str
    bundle: str
    target: str
    draft: str | None
    vocab: int
    vocab_hash: str
    capacity: int
    backend: str
    widths: list[int] | None
    whole: bool
    precision: str
    joined: bool
    drafter: str
    knobs: list[str]
    tree_size: int
    tree_depth: int | None
    verifier: str
    sampling: Sampling
    max_tokens: int
    stops: list[int]
    prompt: list[int]
    texts: Texts

    @property
    def place(self) -> tuple[str, str]:
        """Backend and provider to open such a session with: "device-htp" is ("device", "htp")."""
        if self.backend == "htp-sim":
            return self.backend, "cpu"
        backend, _, provider = self.backend.partition("-")
        return backend, provider or "cpu"


class Judged(msgspec.Struct, forbid_unknown_fields=True):
    """What the target said after an accepted node: the emitted token's raw logit, the best candidates with
    theirs, and the log of the row's summed exponentials. Null where a number is not finite."""

    token: int
    logit: float | None
    log_sum: float | None
    top: list[tuple[int, float | None]]


class TraceRound(Record, tag="round"):
    """One round, counted from 1; nodes as in `TokenTree`. `accepted` holds nodes from the root on, and
    `emitted`, `margins` and `judged` have one entry for each of them."""

    number: int
    context: int
    width: int
    tokens: list[int]
    parents: list[int]
    probabilities: list[float | None]
    sources: list[str]
    accepted: list[int]
    emitted: list[int]
    margins: list[float | None]
    judged: list[Judged]
    seconds: dict[str, float]
    degraded: bool
    finish: str | None
    texts: Texts

    def tree(self) -> TokenTree:
        # Independent draws may repeat a token among siblings, so nothing is merged here.
        builder = TreeBuilder(self.tokens[ROOT], duplicates=True)
        for node in range(1, len(self.tokens)):
            chance = self.probabilities[node]
            builder.add(
                self.parents[node],
                self.tokens[node],
                math.nan if chance is None else chance,
                self.sources[node],
            )
        return builder.build()

    def round(self) -> Round:
        """As the decode loop made it, log probabilities left out."""
        return Round(
            tree=self.tree(),
            accepted=tuple(self.accepted),
            tokens=tuple(self.emitted),
            context=self.context,
            finish=self.finish,
            degraded=self.degraded,
            margins=tuple(math.nan if margin is None else margin for margin in self.margins),
            width=self.width,
            seconds=dict(self.seconds),
        )


class End(Record, tag="end"):
    """The last line of a run that came to an end. `sha256` is that of the emitted tokens, int32 little
    endian."""

    finish: str | None
    tokens: int
    sha256: str
    stats: dict[str, Any]


@dataclass(slots=True)
class Trace:
    """A trace that was read or recorded. Without `end` the run, or the file, was cut off."""

    header: Header
    rounds: list[TraceRound] = field(default_factory=list)
    end: End | None = None

    @property
    def emitted(self) -> list[int]:
        return [token for current in self.rounds for token in current.emitted]

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.header.prompt, *self.emitted]

    @property
    def finish(self) -> str:
        """Why the run ended; "cut off" where the trace does not say."""
        return (self.end.finish if self.end else None) or "cut off"

    def texts(self) -> Texts:
        shown = dict(self.header.texts)
        for current in self.rounds:
            shown |= current.texts
        return shown

    def stats(self) -> Stats:
        """Figures of the rounds that are there; counts of draft passes are in `end` alone."""
        stats = Stats(prompt_tokens=len(self.header.prompt))
        for current in self.rounds:
            tree, path = current.tree(), current.accepted
            below = [*path[1:], tree.child(path[-1], current.emitted[-1])]
            stats.count(tree, list(zip(path, below, strict=True)))
            stats.tokens += len(current.emitted)
            stats.degraded += current.degraded
            for phase, seconds in current.seconds.items():
                stats.spend(phase, seconds)
        return stats


class Recorder:
    """Turns the rounds of one run into records. `show` gives a token's text."""

    def __init__(self, show: Callable[[int], str]) -> None:
        self._show = show
        self._shown: set[int] = set()
        self._rounds = 0
        self._emitted: list[int] = []

    def header(
        self,
        bundle: Bundle,
        decoder: Decoder,
        prompt: Sequence[int],
        *,
        whole: bool,
        knobs: Sequence[str] = (),
    ) -> Header:
        """`whole` as the target's session was opened with; `knobs` as given to the drafter, NAME=VALUE."""
        spec, options = decoder.session.spec, decoder.options
        return Header(
            format=FORMAT,
            hexgraft=importlib.metadata.version("hexgraft"),
            bundle=bundle.digest,
            target=bundle.target.name,
            draft=bundle.draft.name if bundle.draft else None,
            vocab=spec.vocab,
            vocab_hash=bundle.manifest.tokenizer.vocab_hash,
            capacity=spec.capacity,
            backend=spec.provider,
            widths=list(spec.widths) if spec.widths else None,
            whole=whole,
            precision=bundle.target.cpu_precision or "",
            joined=is_joined(bundle.target),
            drafter=decoder.drafter.name,
            knobs=list(knobs),
            tree_size=options.tree_size,
            tree_depth=options.tree_depth,
            verifier=decoder.verifier.name,
            sampling=options.sampling,
            max_tokens=options.max_tokens,
            stops=sorted(options.stops),
            prompt=list(prompt),
            texts=self._texts(prompt),
        )

    def round(self, current: Round) -> TraceRound:
        tree = current.tree
        self._rounds += 1
        self._emitted += current.tokens
        judged = [_judged(found) for found in current.logprobs]
        mentioned = [*tree.tokens.tolist(), *current.tokens, *(i for one in judged for i, _ in one.top)]
        return TraceRound(
            number=self._rounds,
            context=current.context,
            width=current.width,
            tokens=tree.tokens.tolist(),
            parents=tree.parents.tolist(),
            probabilities=[finite(p) for p in tree.probabilities.tolist()],
            sources=list(tree.sources),
            accepted=list(current.accepted),
            emitted=list(current.tokens),
            margins=[finite(margin) for margin in current.margins] or [_margin(one) for one in judged],
            judged=judged,
            seconds={phase: round(seconds, 7) for phase, seconds in current.seconds.items()},
            degraded=current.degraded,
            finish=current.finish,
            texts=self._texts(mentioned),
        )

    def end(self, stats: Stats, finish: str | None) -> End:
        return End(finish, len(self._emitted), tokens_hash(self._emitted), stats.as_dict())

    def _texts(self, tokens: Iterable[int]) -> Texts:
        fresh = sorted(set(tokens) - self._shown)
        self._shown |= set(fresh)
        return {token: self._show(token) for token in fresh}


def top_recorded(temperature: float) -> int:
    """`DecodeOptions.logprobs` of a run that is traced."""
    return TOP_SAMPLED if temperature > 0 else TOP_GREEDY


def tokens_hash(tokens: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(tokens, "<i4").tobytes()).hexdigest()


def _judged(found: TokenLogprob) -> Judged:
    def logit(logprob: float) -> float | None:
        # Back to the float32 the target gave: the log sum went off and on again in float64.
        return finite(float(np.float32(logprob + found.log_sum)))

    top = [(token, logit(logprob)) for token, logprob in found.top]
    return Judged(found.token, logit(found.logprob), finite(found.log_sum), top)


def _margin(judged: Judged) -> float | None:
    """Between the two best, in float32 as the walk takes it."""
    best = [logit for _, logit in judged.top[:2] if logit is not None]
    return float(np.float32(best[0]) - np.float32(best[1])) if len(best) == 2 else None


def finite(number: float) -> float | None:
    """A number as JSON has it: null for what is infinite or none."""
    return number if math.isfinite(number) else None
