"""Trains a draft head: soft cross-entropy to the target, unrolled on the head's own states, resumable, in one
process or in several under torchrun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexgraft.export.train.dataset import Batch, Dataset
from hexgraft.export.train.draft_net import DraftNet
from hexgraft.export.train.loss import soft_cross_entropy
from hexgraft.export.train.workers import Workers

functional = torch.nn.functional


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """`batch` is rows a step, over all processes; `unroll` steps on the head's own states.

    Matrices are trained by Muon where `orthogonal`, by which a head gains more in the same time, all else by
    AdamW. Their learning rate rises to `rate` for `warmup` steps (a tenth of all at most), stays there, and
    falls as a cosine over the last `fall` epochs. The first `single` epochs, but for the last of all, train
    the first step alone at a third of the cost. Where time is short these are parts of the time instead, if
    that comes first: the rate falls in the last `_FALLING` of it, and the first step is alone for no longer
    than `_ALONE` of it.

    Source of Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
    """

    seed: int = 0
    epochs: int = 4
    batch: int = 2048
    unroll: int = 3
    single: int = 2
    rate: float = 7e-4
    warmup: int = 20
    fall: int = 2
    decay: float = 0.01
    clip: float = 0.5
    step_weight: float = 0.8
    feature_weight: float = 0.1
    low_precision: bool = True
    orthogonal: bool = True


_FALLING = 0.5
_ALONE = 0.3
_MARKS = 8
"""So often in a limited time the draft is measured."""


@dataclass(slots=True)
class Progress:
    """Where a training stands: the next epoch and batch, the mean losses so far, and which part of its time
    is used (always 0 where time is not limited)."""

    epoch: int = 0
    place: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)
    used: float = 0.0


class Trainer:
    """Owns the head, its optimiser and the place in the data. `state` and `load` make it resumable."""

    def __init__(
        self,
        net: DraftNet,
        data: Dataset,
        embedding: Tensor,
        head: Tensor,
        options: TrainOptions,
        workers: Workers,
    ) -> None:
        self.net, self.data, self.options, self.workers = net, data, options, workers
        self.embedding, self.head = embedding, head
        matrices = [p for p in net.parameters() if p.ndim == 2]
        vectors = [p for p in net.parameters() if p.ndim != 2]
        adam, muon = torch.optim.AdamW, torch.optim.Muon
        self.optimisers: list[torch.optim.Optimizer] = [
            adam(vectors, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.0),
            # Its steps as large as AdamW's, so that one learning rate suits both.
            muon(matrices, lr=options.rate, weight_decay=options.decay, adjust_lr_fn="match_rms_adamw")
            if options.orthogonal
            else adam(matrices, lr=options.rate, betas=(0.9, 0.95), weight_decay=options.decay),
        ]
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.progress = Progress()
        counts = [len(data.order(options.seed, epoch, options.batch)) for epoch in range(options.epochs)]
        self.steps, self.first, self.falling = sum(counts), counts[0], sum(counts[-options.fall :])

    def stretches(
        self, after_step: Callable[[Progress], None], used: Callable[[], float] | None = None
    ) -> Iterator[None]:
        """Train, until all epochs are over or all time is `used` (0 to 1); yields where the draft is worth
        measuring: after every epoch, and after every eighth of the time."""
        progress = self.progress
        while progress.epoch < self.options.epochs and progress.used < 1:
            batches = self.data.order(self.options.seed, progress.epoch, self.options.batch)
            while progress.place < len(batches) and progress.used < 1:
                before = progress.used
                progress.losses.append(self._step(batches[progress.place], used() if used else 0.0))
                progress.place += 1
                progress.step += 1
                after_step(progress)
                if int(before * _MARKS) < int(progress.used * _MARKS) and progress.place < len(batches):
                    yield
            if progress.place == len(batches):
                progress.epoch, progress.place = progress.epoch + 1, 0
                yield

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        return {
            "net": self.net.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "progress": asdict(self.progress),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state` of a trainer of the same data and options."""
        self.net.load_state_dict(state["net"])
        for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(kept)
        self.progress = Progress(**state["progress"])

    def _rate(self, step: int) -> float:
        done = max(
            0.0,
            (step - (self.steps - self.falling)) / self.falling,
            1 - (1 - min(self.progress.used, 1.0)) / _FALLING,
        )
        risen = min(1.0, (step + 1) / min(self.options.warmup, self.steps // 10 + 1))
        return self.options.rate * risen * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))

    def _step(self, numbers: list[int], used: float) -> float:
        rate = self._rate(self.progress.step)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad(set_to_none=False)
        mine = self.workers.share(numbers)
        total, count = torch.zeros(()), torch.zeros(())
        if mine:
            total, count = self._loss(self.data.batch(mine))
        clock = torch.tensor(used if self.workers.first else 0.0)  # one clock, or processes would part
        sums = self.workers.sum(torch.stack((total.detach().cpu(), count.cpu(), clock)))
        loss = total / sums[1].clamp(min=1.0)
        if mine:
            loss.backward()  # type: ignore[no-untyped-call]
        self.workers.sum_gradients(self.net.parameters())
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.options.clip)
        for optimiser in self.optimisers:
            optimiser.step()
        self.progress.used = float(sums[2])
        return float(sums[0] / sums[1].clamp(min=1.0))

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The weighted sum of losses over rows and steps, and the sum of the first step's weights."""
        options = self.options
        with torch.autocast(self.embedding.device.type, torch.bfloat16, enabled=options.low_precision):
            alone = self.progress.epoch < min(options.single, options.epochs - 1)
            steps = 1 if alone and self.progress.used < _ALONE else options.unroll
            states = self.net.unroll(batch, self.embedding, steps)
            normed = [self.net.norm(state) for state in states]
        total = torch.zeros(())
        for number, state in enumerate(normed, 1):
            rows = slice(number, number + state.shape[1])
            counted = batch.weights[:, rows] > 0  # pads and whole prompts cost no logits
            weights, found = batch.weights[:, rows][counted], state[counted].float()
            ids, shares = batch.ids[:, rows][counted], batch.shares[:, rows][counted]
            loss = soft_cross_entropy(found, self.head, ids, shares, weights)
            if options.feature_weight:
                gap = functional.smooth_l1_loss(found, batch.final[:, rows][counted], reduction="none")
                loss = loss + options.feature_weight * (gap.mean(-1) * weights).sum()
            total = total + options.step_weight ** (number - 1) * loss
        return total, batch.weights[:, 1:].sum()


def feature_scale(data: Dataset, texts: int = 64) -> Tensor:
    """The typical size of every number of the features [F * d], first tokens of texts left out: theirs are
    hundreds of times larger."""
    rows = np.concatenate([text.states[4:, 1:] for text in data.texts[:texts]]).astype(np.float32)
    flat: NDArray[np.float32] = rows.reshape(len(rows), -1)
    return torch.from_numpy(np.sqrt(np.mean(flat**2, axis=0)) + 1e-3)
