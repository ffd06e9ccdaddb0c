"""From a target to a trained draft head: texts, training, report. Every stage goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hexgraft.export.train.dataset import Dataset, coverage, frequent_tokens, read_texts
from hexgraft.export.train.generate import Plan, generate_wave, wave_path, waves, write_wave
from hexgraft.export.train.head_file import RECIPE, TABLE, free_bytes, write_head
from hexgraft.export.train.initial import initial_head
from hexgraft.export.train.outlook import Outlook, outlook
from hexgraft.export.train.seeds import Request
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.export.train.trainer import Progress, Trainer, TrainOptions, feature_scale
from hexgraft.export.train.work import Work
from hexgraft.export.train.workers import Workers
from hexgraft.host.bundle import Bundle
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import UsageError
from hexgraft.models.features import eagle3_features

REPORT = "report.json"
_HELD_TOKENS = 96
_PROMPT_TOKENS = 320
_EXPECTED = 0.6
"""Part of `new_tokens` that an answer has on average, for sizing; measured on SmolLM2."""
_LEAST_TOKENS = 256
"""Fewer tokens than this, written by the target, teach nothing."""
_SAVE_STEPS = 50

Say = Callable[[str], None]
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What to train, on what. `tokens` is about how many the target writes, `rows` the draft vocabulary.

    With `minutes` the texts get at most half of the time and training ends with the epoch after which another
    one would not fit.
    """

    tokens: int = 400_000
    rows: int = 12288
    seed: int = 0
    texts: int = 256
    new_tokens: int = 256
    extra: tuple[str, ...] = ()
    minutes: float | None = None
    train: TrainOptions = field(default_factory=TrainOptions)
    patience: int = 2

    @property
    def waves(self) -> int:
        """Waves that hold about `tokens`."""
        return max(1, round(self.tokens / (self.texts * self.new_tokens * _EXPECTED)))

    def plan(self, layers: int, context: int) -> Plan:
        """How the texts of this job are made. UsageError if answers leave no room for prompts."""
        room = min(_PROMPT_TOKENS, context - max(self.new_tokens, _HELD_TOKENS))
        if room < 1:
            raise UsageError(
                f"answers of {self.new_tokens} tokens leave no room for prompts in a context of {context}",
                f"use --new-tokens {context // 2}",
            )
        return Plan(self.seed, eagle3_features(layers), self.texts, self.new_tokens, room, self.extra)


class HeadJob:
    """One target's training. `generate` and `train` may run in different processes, or on different machines
    that see the same work folder."""

    def __init__(self, bundle: Bundle, work: Path, job: Job, say: Say) -> None:
        self.bundle, self.job, self.say = bundle, job, say
        self.start = time.monotonic()
        if job.rows > bundle.target.vocab:
            frequent_tokens([], bundle.target.vocab, job.rows)
        plan = job.plan(bundle.target.layers, bundle.target.context)
        self.work = Work(work, bundle.manifest.files[_graph_file(bundle)].sha256, plan)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        low = torch.bfloat16 if job.train.low_precision else torch.float32
        self.graph = TorchGraph(bundle, dtype=low, device=device)
        self._codec = TextCodec(bundle)

    def generate(self, shard: int, shards: int, advance: Advance) -> int:
        """Write this shard's waves that are missing; returns how many waves there are to be in all."""
        missing = self.work.missing(self.job.waves, shard, shards)
        self._check_space(len(missing))
        for number, asked in enumerate(waves(self.work.plan)):
            if number >= self.job.waves:
                break
            if number in missing:
                if self._late(0.5) and number > 0:
                    self.say(f"the time for texts is over after {number} of {self.job.waves} waves")
                    return number
                write_wave(self.work.waves, number, self._wave(number, asked, self.work.plan, advance))
        return self.job.waves

    def train(self, output: Path, count: int, workers: Workers, advance: Advance) -> dict[str, Any]:
        """Train on the first `count` waves and write the best head at `output`; returns the report."""
        texts = read_texts(self.work.files(count))
        tokens = frequent_tokens(texts, self.bundle.target.vocab, self.job.rows)
        data = Dataset(texts, self.graph, tokens)
        if data.written < _LEAST_TOKENS:
            raise UsageError(
                f"{data.written} tokens of text are too few to train a head on", "use --tokens 100000 or more"
            )
        held = Dataset(self._held(), self.graph, tokens)
        run = _Run(self, data, held, tokens, workers, output)
        report = run.run(advance)
        report["data"] = {
            "waves": count,
            "texts": len(data.texts),
            "rows": data.rows,
            "written": data.written,
            "coverage": round(coverage(texts, tokens), 4),
            "held_out_coverage": round(coverage(held.texts, tokens), 4),
        }
        return report

    def _held(self) -> list[Any]:
        """The target's greedy answers to the prompts of the lab, which no training text was asked for."""
        plan = replace(self.work.plan, texts=len(LAB_PROMPTS), new_tokens=_HELD_TOKENS)
        file = self.work.path / "held-out.safetensors"
        if not file.is_file():
            asked = [Request(prompt.text, 0.0) for prompt in LAB_PROMPTS]
            data = self._wave(0, asked, plan, lambda count: None)
            write_wave(self.work.path, 0, data)
            wave_path(self.work.path, 0).replace(file)
        return read_texts([file])

    def _wave(self, number: int, asked: list[Request], plan: Plan, advance: Advance) -> bytes:
        stops = self.bundle.manifest.tokenizer.stop_tokens
        return generate_wave(self.graph, plan, number, asked, self._encode, stops, advance)

    def _encode(self, text: str) -> list[int]:
        if not self._codec.has_template:
            return self._codec.encode_raw(text)
        return self._codec.encode_chat([{"role": "user", "content": text}])

    def _check_space(self, missing: int) -> None:
        plan = self.work.plan
        row = 2 * (len(plan.features) + 1) * self.bundle.target.hidden
        need = missing * plan.texts * (plan.new_tokens + 100) * row
        free = free_bytes(self.work.path)
        if need > free:
            raise UsageError(
                f"the texts and their states take up to {need / 1e9:.1f} GB, {self.work.path} has "
                f"{free / 1e9:.1f} GB free",
                "use fewer --tokens, or name a folder on another disk with --work",
            )

    def _late(self, part: float) -> bool:
        return self.job.minutes is not None and time.monotonic() - self.start > part * 60 * self.job.minutes


class _Run:
    """One training run of a job."""

    def __init__(
        self,
        owner: HeadJob,
        data: Dataset,
        held: Dataset,
        tokens: NDArray[np.int64],
        workers: Workers,
        output: Path,
    ) -> None:
        self.owner, self.held, self.tokens, self.workers, self.output = owner, held, tokens, workers, output
        graph, options = owner.graph, owner.job.train
        net = initial_head(graph, owner.work.plan.features, feature_scale(data), owner.job.seed)
        rows = torch.from_numpy(tokens).to(graph.device)
        self.embedding = graph.weight("embed")
        self.head = graph.head[rows] * graph.logit_scale
        self.trainer = Trainer(net.to(graph.device), data, self.embedding, self.head, options, workers)
        self.outlooks: list[Outlook] = []
        self.options = {**asdict(options), "rows": owner.job.rows, "texts": len(data.texts)}
        kept = owner.work.load(self.options)
        if kept is not None:
            self.trainer.load(kept["trainer"])
            self.outlooks = [Outlook(**value) for value in kept["outlooks"]]
            owner.say(f"going on after step {self.trainer.progress.step} of {self.trainer.steps}")

    def run(self, advance: Advance) -> dict[str, Any]:
        started = time.monotonic()
        for epoch in self.trainer.epochs(lambda progress: self._after_step(progress, advance)):
            found = self._measure()
            best = max((o.tokens_per_round for o in self.outlooks), default=0.0)
            self.outlooks.append(found)
            if found.tokens_per_round > best and self.workers.first:
                self._write(found)
            self._keep()
            losses = self.trainer.progress.losses[-20:]
            self.owner.say(
                f"epoch {epoch}: loss {np.mean(losses):.3f}, "
                f"{found.tokens_per_round:.2f} tokens a round in chains of 4 on held-out prompts"
            )
            spent = (time.monotonic() - started) / (epoch or 1)
            if self._is_over(spent):
                break
        self.workers.wait()
        if self.workers.first:
            self.owner.work.forget()
        return self._report()

    def _measure(self) -> Outlook:
        return outlook(self.trainer.net, self.held, self.embedding, self.head, self.tokens)

    def _is_over(self, spent: float) -> bool:
        """Whether to stop early: no better for `patience` epochs, or no time for one more."""
        job, figures = self.owner.job, [o.tokens_per_round for o in self.outlooks]
        if len(figures) - 1 - int(np.argmax(figures)) >= job.patience:
            return True
        left = None if job.minutes is None else 60 * job.minutes - (time.monotonic() - self.owner.start)
        return left is not None and left < spent

    def _after_step(self, progress: Progress, advance: Advance) -> None:
        advance(1)
        if progress.step % _SAVE_STEPS == 0:
            self._keep()

    def _keep(self) -> None:
        if self.workers.first:
            outlooks = [asdict(value) for value in self.outlooks]
            self.owner.work.save(
                {"options": self.options, "trainer": self.trainer.state(), "outlooks": outlooks}
            )

    def _report(self) -> dict[str, Any]:
        best = max(self.outlooks, key=lambda o: o.tokens_per_round)
        return {
            "steps": self.trainer.progress.step,
            "losses": [round(loss, 5) for loss in self.trainer.progress.losses],
            "chain_by_epoch": [round(o.tokens_per_round, 4) for o in self.outlooks],
            "chain": round(best.tokens_per_round, 4),
            "acceptance": best.table,
            "parameters": sum(p.numel() for p in self.trainer.net.parameters()),
        }

    def _write(self, found: Outlook) -> None:
        bundle, job = self.owner.bundle, self.owner.job
        recipe = {
            "target": bundle.target.name,
            "license": bundle.manifest.provenance["target"].license,
            "seed": job.seed,
            "features": list(self.owner.work.plan.features),
            "training": asdict(job.train),
            "rows": job.rows,
        }
        write_head(
            self.output,
            self.trainer.net,
            self.tokens,
            bundle.target.vocab,
            bundle.target.context,
            {RECIPE: recipe, TABLE: {"by_depth_and_rank": found.table}},
        )


def _graph_file(bundle: Bundle) -> str:
    return bundle.graph("target", "cpu").file
