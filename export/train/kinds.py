"""The kinds of drafts that can be trained: what each reads, starts from and is written as."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hexgraft.export.train.begun_head import begun_head
from hexgraft.export.train.dataset import Dataset
from hexgraft.export.train.draft_net import DraftNet
from hexgraft.export.train.head_file import write_head
from hexgraft.export.train.initial import initial_head
from hexgraft.export.train.small_file import write_small
from hexgraft.export.train.small_net import initial_small
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.export.train.trainer import feature_scale
from hexgraft.host.bundle import Bundle
from hexgraft.models.head_checkpoint import HeadCheckpoint

KINDS = ("head", "small")


class Draft(Protocol):
    """A draft that is being trained."""

    net: DraftNet

    def write(self, folder: Path, extra: dict[str, dict[str, Any]]) -> None:
        """Write it as a folder for `export --draft`, with `extra` JSON files beside it."""
        ...


class HeadDraft:
    """An EAGLE-3 head that proposes `tokens`, begun as the head `start` or as the target's last layer."""

    net: DraftNet

    def __init__(
        self,
        graph: TorchGraph,
        bundle: Bundle,
        data: Dataset,
        tokens: NDArray[np.int64],
        features: tuple[int, ...],
        seed: int,
        start: HeadCheckpoint | None,
    ) -> None:
        scale = feature_scale(data)
        head = begun_head(start, scale, graph.slope) if start else initial_head(graph, features, scale, seed)
        self._head = head.to(graph.device)
        self.net, self._bundle, self._tokens, self._slope = self._head, bundle, tokens, graph.slope

    def write(self, folder: Path, extra: dict[str, dict[str, Any]]) -> None:
        target = self._bundle.target
        write_head(folder, self._head, self._tokens, target.vocab, target.context, extra, self._slope)


class SmallDraft:
    """Some of the target's layers as a model of its own."""

    net: DraftNet

    def __init__(self, graph: TorchGraph, bundle: Bundle, layers: int) -> None:
        self._small = initial_small(graph, layers).to(torch.device(graph.device))
        self.net, self._graph, self._bundle = self._small, graph, bundle

    def write(self, folder: Path, extra: dict[str, dict[str, Any]]) -> None:
        write_small(folder, self._small, self._graph, self._bundle, extra)
