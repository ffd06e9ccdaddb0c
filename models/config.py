"""What a decoder-only network is, in the few numbers and switches the graph builder needs."""

from __future__ import annotations

from dataclasses import dataclass

from hexgraft.models.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: rotate-half pairs (i, i + dim/2), as Hugging Face lays them out."""

    dim: int
    theta: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one decoder. Families differ in these values, never in code.

    `hidden` is the residual width d, `ffn` the inner width of the SwiGLU, `context` the positions the
    checkpoint was trained for. `tied` means the head is the embedding; `qkv_bias` adds a bias to q, k and v.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rms_eps: float
    rope: Rope
    tied: bool
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context")
        for name in sizes:
            if getattr(self, name) < 1:
                raise CheckpointError(f"model config: {name} is {getattr(self, name)}, must be at least 1")
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"model config: {self.heads} query heads cannot be shared by {self.kv_heads} key/value heads"
            )
        if self.rope.dim != self.head_dim or self.head_dim % 2:
            raise CheckpointError(
                f"model config: RoPE over {self.rope.dim} of {self.head_dim} head dimensions is unsupported",
                "only full, even head dimensions are rotated so far",
            )

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The canonical tensor names of a checkpoint and their shapes, matrices as [out, in].

    Every checkpoint reader maps its own names to these, so that builders know one vocabulary only.
    """
    d, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab, d)}
    for i in range(config.layers):
        layer = f"layers.{i}."
        shapes[layer + "attn_norm"] = (d,)
        shapes[layer + "q"] = (q, d)
        shapes[layer + "k"] = (kv, d)
        shapes[layer + "v"] = (kv, d)
        if config.qkv_bias:
            shapes[layer + "q_bias"] = (q,)
            shapes[layer + "k_bias"] = (kv,)
            shapes[layer + "v_bias"] = (kv,)
        shapes[layer + "o"] = (d, q)
        shapes[layer + "ffn_norm"] = (d,)
        shapes[layer + "gate"] = (config.ffn, d)
        shapes[layer + "up"] = (config.ffn, d)
        shapes[layer + "down"] = (d, config.ffn)
    shapes["norm"] = (d,)
    if not config.tied:
        shapes["head"] = (config.vocab, d)
    return shapes
