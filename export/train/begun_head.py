"""A head that training goes on from, in place of the target's last layer: trained before, or published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hexgraft.export.train.head_net import HeadNet, HeadSizes
from hexgraft.export.train.plain_rope import is_plain, rope_base
from hexgraft.host.manifest import ModelEntry
from hexgraft.models.errors import UsageError
from hexgraft.models.head_checkpoint import HeadCheckpoint, open_head
from hexgraft.models.head_config import EAGLE3
from hexgraft.models.hf_names import LAYER_PARTS
from hexgraft.models.shipped_heads import shipped_heads

_HINT = "leave out --from: a head is then begun from the target's last layer"
_PARAMETERS = {"fc": "fc.weight", "norm": "norm.weight"}
_PARAMETERS |= {
    f"layers.0.{part}": "midlayer." + ({"hidden_norm": "hidden_norm.weight"} | LAYER_PARTS)[part]
    for part in ("attn_norm", "hidden_norm", "q", "k", "v", "o", "ffn_norm", "gate", "up", "down")
}
"""Names of the net by those of a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    vocab: int
    layers: int
    hidden: int
    tied: bool = True
    logit_scale: float = 1.0  # of no concern: EAGLE-1's heads alone take these from their target
    final_softcap: float | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """What a head is checked against: its target, as a bundle describes it."""

    name: str
    config: _Sizes

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        raise UsageError(f"a head with an {name} matrix of its own cannot be trained further", _HINT)


def open_begun(path: Path, model: ModelEntry) -> HeadCheckpoint:
    """The head at `path` (a folder, a name that comes with hexgraft, or an id on the hub), checked to be one
    for the target `model` that can be trained: UsageError or CheckpointError where it is not."""
    target = _Target(model.name, _Sizes(model.vocab, model.layers, model.hidden))
    head = open_head(path, target)
    if head is None:
        names = ", ".join(shipped_heads())
        raise UsageError(
            f"there is no draft head at {path}", f"give a folder, an id on the hub, or one of: {names}"
        )
    layer = head.config.layer
    if head.config.kind != EAGLE3:
        raise UsageError(f"{path} is a head of EAGLE-1 or 2; those of EAGLE-3 are trained", _HINT)
    if head.brings("head") or head.brings("embed"):
        own = "output" if head.brings("head") else "embedding"
        raise UsageError(
            f"{path} has an {own} matrix of its own; trained are heads that use the target's", _HINT
        )
    if layer.qkv_bias:
        raise UsageError(f"{path} has biases, which trained heads have not", _HINT)
    if not is_plain(layer.rope, layer.head_dim):
        raise UsageError(f"{path} scales its positions, which trained heads do not", _HINT)
    return head


def begun_head(head: HeadCheckpoint, scale: Tensor, slope: float = 1.0) -> HeadNet:
    """A net with the weights of `head`; `scale` is what features are divided by while it is trained, `slope`
    what its last norm was multiplied by when it was written."""
    layer = head.config.layer
    net = HeadNet(
        HeadSizes(
            layer.hidden,
            layer.heads,
            layer.kv_heads,
            layer.head_dim,
            layer.ffn,
            head.config.features,
            rope_base(layer.rope),
            layer.rms_eps,
        )
    )
    net.feature_scale.copy_(scale)
    parameters = dict(net.named_parameters())
    factors: dict[str, Tensor | float] = {"fc": scale, "norm": 1 / slope}
    with torch.no_grad():
        for name, parameter in _PARAMETERS.items():
            weight = torch.from_numpy(np.concatenate(list(head.blocks(name))))
            parameters.pop(parameter).copy_(weight * factors.get(name, 1.0))
    assert not parameters  # every weight of the net has come from the head
    return net
