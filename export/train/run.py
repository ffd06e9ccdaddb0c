"""One training run: epochs, measured on held-out texts, the best one kept."""

from __future__ import annotations

import time
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
    ) -> None:
        self.draft, self.held, self.tokens, self.work, self.workers = draft, held, tokens, work, workers
        rows = torch.from_numpy(tokens).to(graph.device)
        self.embedding = graph.weight("embed")
        self.head = graph.head[rows] * graph.logit_scale
        self.trainer = Trainer(draft.net, data, self.embedding, self.head, job.train, workers)
        self.outlooks: list[Outlook] = []
        self.options = {
            **asdict(job.train),
            "kind": job.kind,
            "layers": job.layers,
            "rows": len(tokens),
            "texts": len(data.texts),
        }

    def run(
        self,
        output: Path,
        recipe: dict[str, Any],
        say: Callable[[str], None],
        advance: Callable[[int], None],
        left: Callable[[], float],
    ) -> dict[str, Any]:
        """Train until the epochs are over, the time that is `left` [s] does not suffice for another one, or
        none of the last ones was better. The best draft is written at `output`; returns the report."""
        self._resume(say)
        started, first = time.monotonic(), self.trainer.progress.epoch
        for epoch in self.trainer.epochs(lambda progress: self._after_step(progress, advance)):
            found = outlook(self.draft.net, self.held, self.embedding, self.head, self.tokens)
            best = max((o.tokens_per_round for o in self.outlooks), default=0.0)
            self.outlooks.append(found)
            if found.tokens_per_round > best and self.workers.first:
                table = {"by_depth_and_rank": found.table}
                self.draft.write(output, {RECIPE: recipe, ACCEPTANCE: table})
            self._keep()
            say(
                f"epoch {epoch}: loss {np.mean(self.trainer.progress.losses[-20:]):.3f}, "
                f"{found.tokens_per_round:.2f} tokens a round in chains of 4 on held-out prompts"
            )
            spent = (time.monotonic() - started) / max(1, epoch - first)
            if self.workers.any(self._stalled() or left() < spent):
                break
        self.workers.wait()
        return self._report()

    def _resume(self, say: Callable[[str], None]) -> None:
        kept = self.work.load(self.options)
        if kept is not None:
            self.trainer.load(kept["trainer"])
            self.outlooks = [Outlook(**value) for value in kept["outlooks"]]
            say(f"going on after step {self.trainer.progress.step} of {self.trainer.steps}")

    def _stalled(self) -> bool:
        figures = [o.tokens_per_round for o in self.outlooks]
        return len(figures) - 1 - int(np.argmax(figures)) >= _PATIENCE

    def _after_step(self, progress: Progress, advance: Callable[[int], None]) -> None:
        advance(1)
        if progress.step % _SAVE_STEPS == 0:
            self._keep()

    def _keep(self) -> None:
        if self.workers.first:
            outlooks = [asdict(value) for value in self.outlooks]
            self.work.save({"options": self.options, "trainer": self.trainer.state(), "outlooks": outlooks})

    def _report(self) -> dict[str, Any]:
        best = max(self.outlooks, key=lambda o: o.tokens_per_round)
        return {
            "steps": self.trainer.progress.step,
            "losses": [round(loss, 5) for loss in self.trainer.progress.losses],
            "chain_by_epoch": [round(o.tokens_per_round, 4) for o in self.outlooks],
            "chain": round(best.tokens_per_round, 4),
            "acceptance_by_depth_and_rank": best.table,
            "parameters": sum(p.numel() for p in self.draft.net.parameters()),
        }
