"""From a target to a trained draft: texts, training, report. Every stage goes on where it was."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hexgraft.export.train.begun_head import open_begun
from hexgraft.export.train.dataset import Dataset, coverage, frequent_tokens, read_texts
from hexgraft.export.train.generate import Plan, generate_wave, wave_path, waves, write_wave
from hexgraft.export.train.head_file import free_bytes
from hexgraft.export.train.kinds import Draft, HeadDraft, SmallDraft
from hexgraft.export.train.report import draft_size
from hexgraft.export.train.run import TrainingRun
from hexgraft.export.train.seeds import Request
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.export.train.trainer import TrainOptions
from hexgraft.export.train.whole_prompts import Prompts
from hexgraft.export.train.work import Work
from hexgraft.export.train.workers import Workers
from hexgraft.export.writer import WEIGHTS
from hexgraft.host.atomic_file import write_whole
from hexgraft.host.bundle import Bundle
from hexgraft.host.counted import counted
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.models.errors import HexgraftError, UsageError
from hexgraft.models.features import eagle3_features
from hexgraft.models.head_checkpoint import HeadCheckpoint

REPORT = "report.json"
_HELD_TOKENS = 96
_PROMPT_TOKENS = 320
_EXPECTED = 0.6
"""Part of `new_tokens` that an answer has on average, for sizing; measured on SmolLM2."""
_ROOM = 2
"""Waves that would still fit on the disk when text ends for want of room: training keeps its state there."""
_LEAST_TOKENS = 256
"""Fewer tokens than this, written by the target, teach nothing."""

Say = Callable[[str], None]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, on what. `tokens` is about how many the target writes, `rows` the vocabulary of a
    head; a small draft has `layers` and the whole vocabulary.

    With `minutes` the texts get at most half of the time, and training plans for the rest of it; without
    `tokens` (None) they get all of that half. A head goes on from the head `start`, whose tokens it keeps.
    """

    kind: str = "head"
    tokens: int | None = 400_000
    rows: int = 12288
    seed: int = 0
    texts: int = 256
    new_tokens: int = 256
    extra: tuple[str, ...] = ()
    minutes: float | None = None
    train: TrainOptions = field(default_factory=TrainOptions)
    layers: int = 4
    start: Path | None = None

    @property
    def waves(self) -> int | None:
        """Waves that hold about `tokens`; None where time alone ends them."""
        if self.tokens is None:
            return None
        return max(1, round(self.tokens / (self.texts * self.new_tokens * _EXPECTED)))

    def plan(self, layers: int, context: int) -> Plan:
        """How the texts of this job are made. UsageError if answers leave no room for prompts."""
        room = min(_PROMPT_TOKENS, context - max(self.new_tokens, _HELD_TOKENS))
        if room < 1:
            raise UsageError(
                f"answers of {self.new_tokens} tokens leave no room for prompts in a context of {context}",
                f"use --new-tokens {context // 2}",
            )
        features = eagle3_features(layers) if self.kind == "head" else ()
        return Plan(self.seed, features, self.texts, self.new_tokens, room, self.extra)


def check_written(tokens: int) -> None:
    """Raise UsageError where so many tokens of text are too few."""
    if tokens < _LEAST_TOKENS:
        raise UsageError(
            f"{tokens} tokens of text are too few to train a draft on", "use --tokens 100000 or more"
        )


class TrainingJob:
    """One target's training. `generate` and `train` may run in different processes, or on different machines
    that see the same work folder. What `checks.check_job` finds is to be said before."""

    def __init__(self, bundle: Bundle, work: Path, job: Job, say: Say) -> None:
        self.bundle, self.job, self.say = bundle, job, say
        self.start = time.monotonic()
        plan = job.plan(bundle.target.layers, bundle.target.context)
        self.prompts = Prompts(bundle, plan.prompt_tokens, plan.extra)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        low = torch.bfloat16 if job.train.low_precision else torch.float32
        self.graph = TorchGraph(bundle, dtype=low, device=device)
        graph, weights = _target_files(bundle)
        self.work = Work(work, graph, plan, weights)

    def generate(self, shard: int, shards: int, advance: Advance) -> int:
        """Write this shard's waves that are missing; returns how many waves there are to be in all. Where a
        training had begun when it was stopped, these are the ones that it was begun on."""
        count = self._generate(shard, shards, advance)
        if left_out := len(self.prompts.left_out):
            self.say(f"left out {counted(left_out, 'prompt')} of more than {self.prompts.room} tokens")
        return count

    def _generate(self, shard: int, shards: int, advance: Advance) -> int:
        begun = self.work.begun(self.job.tokens) if self.job.minutes is not None else None
        wanted = self.job.waves if begun is None else begun
        if begun is not None:
            self.say(f"going on with the {begun} waves of text that training was begun on")
        longest = 0.0
        for number, asked in enumerate(waves(self.work.plan, self.prompts.fits)):
            if number == wanted:
                break
            if number % shards == shard and not wave_path(self.work.waves, number).is_file():
                if number > 0 and (reason := self._enough(longest if begun is None else None)):
                    self.say(f"{reason} after wave {number}{f' of {wanted}' if wanted else ''}")
                    return number
                before = self._left()
                write_wave(self.work.waves, number, self._wave(number, asked, self.work.plan, advance))
                longest = max(longest, before - self._left()) if self.job.minutes is not None else 0.0
        return number

    def _enough(self, wave_seconds: float | None) -> str:
        """Why no more text is written, "" where there is no reason; a wave takes `wave_seconds`, None where
        time is no reason."""
        if wave_seconds is not None and self._left() - wave_seconds < 30 * (self.job.minutes or 0):
            return "the time for texts is over"
        wave = self.work.plan.wave_bytes(self.bundle.target.hidden)
        if self.job.tokens is None and free_bytes(self.work.path) < (1 + _ROOM) * wave:
            return "the disk has no room for more text"
        return ""

    def train(self, output: Path, count: int, workers: Workers, advance: Advance) -> dict[str, Any]:
        """Train on the first `count` waves and write the best head at `output`; returns the report."""
        texts = read_texts(self.work.files(count))
        job, vocab = self.job, self.bundle.target.vocab
        start = open_begun(job.start, self.bundle.target) if job.start else None
        if start is None:
            tokens = frequent_tokens(texts, vocab, job.rows if job.kind == "head" else vocab)
        else:
            tokens = np.arange(vocab) if start.tokens is None else start.tokens.astype(np.int64)
        data = Dataset(texts, self.graph, tokens)
        check_written(data.written)
        if workers.first:
            self._held()
        workers.wait()
        held = Dataset(self._held(), self.graph, tokens)
        if workers.any(self._left() <= 0):  # a step alone would make a draft of no use
            spent = math.ceil((time.monotonic() - self.start) / 60)
            raise HexgraftError(
                f"the text took all of the time, {spent} minutes, and left none for training",
                f"use --minutes {2 * spent} or more: it goes on with that text",
            )
        draft = self._draft(data, tokens, start)
        run = TrainingRun(draft, data, held, tokens, self.work, self.graph, job, workers, count)
        report = run.run(output, self._recipe(count, len(tokens), start), self.say, advance, self._left)
        report["data"] = {
            "waves": count,
            "texts": len(data.texts),
            "rows": data.rows,
            "written": data.written,
            "coverage": round(coverage(texts, tokens), 4),
            "held_out_coverage": round(coverage(held.texts, tokens), 4),
        }
        if workers.first:
            report["size"] = draft_size(output, len(tokens), vocab)
            write_whole(output / REPORT, json.dumps(report, indent=1).encode() + b"\n", replace=True)
            self.work.forget()
        workers.wait()  # all leave at once: gloo may abort a process whose peer is gone or still at work
        return report

    def _draft(self, data: Dataset, tokens: NDArray[np.int64], start: HeadCheckpoint | None) -> Draft:
        if self.job.kind == "small":
            return SmallDraft(self.graph, self.bundle, self.job.layers)
        features = self.work.plan.features
        return HeadDraft(self.graph, self.bundle, data, tokens, features, self.job.seed, start)

    def _recipe(self, waves: int, rows: int, start: HeadCheckpoint | None) -> dict[str, Any]:
        return {
            "kind": self.job.kind,
            "target": self.bundle.target.name,
            "license": self.bundle.manifest.provenance["target"].license,
            "seed": self.job.seed,
            "features": list(self.work.plan.features),
            "waves": waves,
            "texts": self.job.texts,
            "new_tokens": self.job.new_tokens,
            "vocab": rows,
            "layers": self.job.layers if self.job.kind == "small" else 1,
            "minutes": self.job.minutes,
            "own_prompts": len(self.job.extra),
            "from": None if start is None else start.origin,
            "training": asdict(self.job.train),
        }

    def _held(self) -> list[Any]:
        """The target's greedy answers to the prompts of the lab, which no training text was asked for."""
        plan = replace(self.work.plan, texts=len(LAB_PROMPTS), new_tokens=_HELD_TOKENS)
        file = self.work.path / "held-out.safetensors"
        if not file.is_file():
            asked = [Request(prompt.text, 0.0) for prompt in LAB_PROMPTS if self.prompts.fits(prompt.text)]
            data = self._wave(0, asked, plan, lambda count: None)
            write_wave(self.work.path, 0, data)
            wave_path(self.work.path, 0).replace(file)
        return read_texts([file])

    def _wave(self, number: int, asked: list[Request], plan: Plan, advance: Advance) -> bytes:
        stops = self.bundle.manifest.tokenizer.stop_tokens
        return generate_wave(self.graph, plan, number, asked, self.prompts.encode, stops, advance)

    def _left(self) -> float:
        """Seconds until the time of the job is over."""
        minutes = self.job.minutes
        return math.inf if minutes is None else 60 * minutes - (time.monotonic() - self.start)


def _target_files(bundle: Bundle) -> tuple[str, str]:
    """The sha256 of the target's graph and of its weights."""
    file, files = bundle.graph("target", "cpu").file, bundle.manifest.files
    return files[file].sha256, files[PurePosixPath(file).with_name(WEIGHTS).as_posix()].sha256
