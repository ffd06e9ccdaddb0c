"""What a draft head is: one or a few decoder layers that read a target's features beside the tokens."""

from __future__ import annotations

from dataclasses import dataclass

from hexgraft.models.config import ModelConfig, tensor_shapes

EAGLE = "eagle"
EAGLE3 = "eagle3"


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of a head. `kind` is "eagle" (EAGLE-1 and 2, which differ in how trees grow, not in the head) or
    "eagle3".

    `layer` describes its layers: `hidden` is the head's own width d, `vocab` that of the target. It proposes
    `rows` tokens, all of the vocabulary or fewer. `features` are the states of the target it reads
    (`ModelEntry.features`), each of `target_hidden` numbers; `fc_bias` adds a bias where they are mixed in.
    """

    kind: str
    layer: ModelConfig
    rows: int
    features: tuple[int, ...]
    target_hidden: int
    fc_bias: bool = False

    @property
    def feature_size(self) -> int:
        """Numbers of target features a row takes, 0 where they take the place of the head's own state."""
        return len(self.features) * self.target_hidden if self.kind == EAGLE3 else 0

    @property
    def context(self) -> int:
        return self.layer.context


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """The canonical tensor names of a head and their shapes, matrices as [out, in]."""
    c = config.layer
    shapes = tensor_shapes(c)
    shapes["head"] = (config.rows, c.hidden)
    inner = config.feature_size if config.kind == EAGLE3 else 2 * c.hidden
    shapes["fc"] = (c.hidden, inner)
    if config.fc_bias:
        shapes["fc_bias"] = (c.hidden,)
    if config.kind == EAGLE3:
        shapes["layers.0.hidden_norm"] = (c.hidden,)
        for part in "qkv":
            shapes[f"layers.0.{part}"] = (shapes[f"layers.0.{part}"][0], 2 * c.hidden)
    else:
        del shapes["layers.0.attn_norm"], shapes["norm"]
    return shapes
