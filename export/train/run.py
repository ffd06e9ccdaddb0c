"""One training run: epochs, measured on held-out texts, the best one kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hexgraft.export.train.dataset import Dataset
from hexgraft.export.train.head_file import RECIPE
from hexgraft.export.train.kinds import Draft
from hexgraft.export.train.outlook import Outlook, outlook
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.export.train.trainer import Progress, Trainer
from hexgraft.export.train.work import Work
from hexgraft.export.train.workers import Workers
from hexgraft.models.acceptance import ACCEPTANCE

if TYPE_CHECKING:
    from hexgraft.export.train.job import Job

_SAVE_STEPS = 50
_PATIENCE = 2
"""Epochs without a better one after which training ends."""


class TrainingRun:
    """Trains a draft, from the state kept in a work folder if there is one of the same options."""

    def __init__(
        self,
        draft: Draft,
        data: Dataset,
        held: Dataset,
        tokens: NDArray[np.int64],
        work: Work,
        graph: TorchGraph,
        job: Job,
        workers: Workers,
        waves: int,
    ) -> None:
        self.draft, self.held, self.tokens, self.work, self.workers = draft, held, tokens, work, workers
        rows = torch.from_numpy(tokens).to(graph.device)
        self.embedding = graph.weight("embed")
        self.head = graph.head[rows] * graph.slope
        self.trainer = Trainer(draft.net, data, self.embedding, self.head, job.train, workers)
        self.outlooks: list[Outlook] = []
        self.measured: list[int] = []
        """Steps after which the outlooks were taken."""
        self.begun = job.start is not None
        self.output = ""
        self.text = {"tokens": job.tokens, "waves": waves}
        self.options = {
            **asdict(job.train),
            "kind": job.kind,
            "layers": job.layers,
            "rows": len(tokens),
            "texts": len(data.texts),
            "from": None if job.start is None else str(job.start),
        }

    def run(
        self,
        output: Path,
        recipe: dict[str, Any],
        say: Callable[[str], None],
        advance: Callable[[int], None],
        left: Callable[[], float],
    ) -> dict[str, Any]:
        """Train until the epochs or the time that is `left` [s] are over; where time is not limited, also
        until none of the last epochs was better. The best draft is written at `output`; returns the
        report."""
        self._resume(output, say)
        used = _clock(left, self.trainer.progress.used)
        if self.begun and not self.outlooks:  # a head that training makes worse stays what it was
            self._measure(output, recipe, say)
        for _ in self.trainer.stretches(lambda progress: self._after_step(progress, advance), used):
            self._measure(output, recipe, say)
            self._keep()
            if used is None and self.workers.any(self._stalled()):
                break
        if not self.outlooks:
            self._measure(output, recipe, say)
        progress, first = self.trainer.progress, self.trainer.first
        if used is not None and progress.step < first:
            say(
                f"the time was over after {progress.step} of the {first} steps of one pass over the text: "
                "more --minutes make a better draft"
            )
        self.workers.wait()
        return self._report()

    def _resume(self, output: Path, say: Callable[[str], None]) -> None:
        kept = self.work.load(self.options)
        self.output = str(output.resolve())
        if kept is not None:
            self.trainer.load(kept["trainer"])
            if kept["output"] == self.output and (output / RECIPE).is_file():  # the best so far is there
                self.outlooks = [Outlook(**value) for value in kept["outlooks"]]
                self.measured = kept["measured"]
            say(f"going on after step {self.trainer.progress.step} of {self.trainer.steps}")

    def _measure(self, output: Path, recipe: dict[str, Any], say: Callable[[str], None]) -> None:
        """Take an outlook, and write the draft if it is the best so far."""
        progress = self.trainer.progress
        found = outlook(self.draft.net, self.held, self.embedding, self.head, self.tokens)
        best = max((o.tokens_per_round for o in self.outlooks), default=-1.0)
        self.outlooks.append(found)
        self.measured.append(progress.step)
        if found.tokens_per_round > best and self.workers.first:
            self.draft.write(output, {RECIPE: recipe, ACCEPTANCE: {"by_depth_and_rank": found.table}})
        loss = f"loss {np.mean(progress.losses[-20:]):.3f}, " if progress.losses else ""
        say(
            f"step {progress.step}, epoch {progress.epoch + 1 if progress.place else progress.epoch}: {loss}"
            f"{found.tokens_per_round:.2f} tokens a round in chains of 4 on held-out prompts"
        )

    def _stalled(self) -> bool:
        figures = [o.tokens_per_round for o in self.outlooks]
        return len(figures) - 1 - int(np.argmax(figures)) >= _PATIENCE

    def _after_step(self, progress: Progress, advance: Callable[[int], None]) -> None:
        advance(1)
        # The draft at the end of the time is kept once it is measured: nothing goes on from there.
        if progress.step % _SAVE_STEPS == 0 and progress.used < 1:
            self._keep()

    def _keep(self) -> None:
        if self.workers.first:
            self.work.save(
                {
                    "options": self.options,
                    "output": self.output,
                    "text": self.text,
                    "trainer": self.trainer.state(),
                    "outlooks": [asdict(value) for value in self.outlooks],
                    "measured": self.measured,
                }
            )

    def _report(self) -> dict[str, Any]:
        best = max(self.outlooks, key=lambda o: o.tokens_per_round)
        return {
            "steps": self.trainer.progress.step,
            "losses": [round(loss, 5) for loss in self.trainer.progress.losses],
            "measured_after_steps": self.measured,
            "chain_when_measured": [round(o.tokens_per_round, 4) for o in self.outlooks],
            "chain": round(best.tokens_per_round, 4),
            "acceptance_by_depth_and_rank": best.table,
            "parameters": sum(p.numel() for p in self.draft.net.parameters()),
        }


def _clock(left: Callable[[], float], before: float) -> Callable[[], float] | None:
    """Which part of the time is used, of which `before` was in an earlier run; None where there is no end."""
    span = max(left(), 1e-6)
    if math.isinf(span):
        return None
    return lambda: before + (1 - before) * (1 - left() / span)
