"""What a decoder-only network is, in the few numbers and switches the graph builder needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hexgraft.models.errors import CheckpointError, DamagedError

ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: rotate-half pairs (i, i + dim/2), as Hugging Face lays them out.

    Whatever scaling a checkpoint asks for is in `frequencies` (dim/2, radians a position), so that a runtime
    only multiplies them by positions; `scale` multiplies both cos and sin (yarn's attention factor).
    """

    dim: int
    frequencies: tuple[float, ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.dim != 2 * len(self.frequencies):
            raise DamagedError(f"RoPE over {self.dim} dimensions with {len(self.frequencies)} frequencies")
        if not all(0 <= frequency <= 1e3 for frequency in self.frequencies) or not 0 < self.scale <= 1e3:
            raise DamagedError("RoPE scaling that gives frequencies or a scale beyond reason")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one decoder. Families differ in these values, never in code.

    `hidden` is the residual width d, `ffn` the inner width of the gated feed-forward, `context` the positions
    the checkpoint is right for (`context_limit` says in words what would lie beyond, where there is more).
    `tied` means the head is the embedding; `qkv_bias`, `o_bias` and `mlp_bias` add biases to those products.

    `qk_norm` normalises each head of q and k before RoPE. `sandwich` also normalises what attention and
    feed-forward give back. `activation` is "silu" or "gelu_tanh". `embedding_scale` multiplies embedded
    tokens, `residual_scale` what is added to the residual, `attention_scale` the scores (None: 1 over the
    root of head_dim), `logit_scale` the logits; a softcap c bounds scores or logits to c * tanh(x / c).
    Of heads whose first `rotated` dimensions alone turn, readers spread those over the head
    (`models.partial_rope`); the others have the frequency 0. Layers in `nope_layers` rotate nothing. Rows of
    `local_layers` see only positions less than `window` back and rotate by `local_rope` where that is given.
    Norm weights are as multiplied: readers add Gemma's 1.
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
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich: bool = False
    activation: str = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None
    logit_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    nope_layers: tuple[int, ...] = ()
    local_layers: tuple[int, ...] = ()
    window: int | None = None
    local_rope: Rope | None = None
    rotated: int | None = None
    context_limit: str | None = None

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context")
        for name in sizes:
            if getattr(self, name) < 1:
                raise DamagedError(f"model config: {name} is {getattr(self, name)}, must be at least 1")
        if self.heads % self.kv_heads:
            raise DamagedError(
                f"model config: {self.heads} query heads cannot be shared by {self.kv_heads} key/value heads"
            )
        if self.activation not in ACTIVATIONS:
            raise CheckpointError(
                f"model config: activation {self.activation} is not supported",
                f"supported: {', '.join(ACTIVATIONS)}",
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

    @property
    def query_scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def within(self, context: int) -> ModelConfig:
        """The same model for texts of at most `context` positions: a window that never closes is none."""
        if self.window is None or self.window < context:
            return self
        local = self.local_layers if self.local_rope is not None else ()
        return replace(self, window=None, local_layers=local)


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
        if config.qk_norm:
            shapes[layer + "q_norm"] = (config.head_dim,)
            shapes[layer + "k_norm"] = (config.head_dim,)
        shapes[layer + "o"] = (d, q)
        if config.o_bias:
            shapes[layer + "o_bias"] = (d,)
        if config.sandwich:
            shapes[layer + "attn_post_norm"] = (d,)
        shapes[layer + "ffn_norm"] = (d,)
        shapes[layer + "gate"] = (config.ffn, d)
        shapes[layer + "up"] = (config.ffn, d)
        shapes[layer + "down"] = (d, config.ffn)
        if config.mlp_bias:
            shapes[layer + "gate_bias"] = (config.ffn,)
            shapes[layer + "up_bias"] = (config.ffn,)
            shapes[layer + "down_bias"] = (d,)
        if config.sandwich:
            shapes[layer + "ffn_post_norm"] = (d,)
    shapes["norm"] = (d,)
    if not config.tied:
        shapes["head"] = (config.vocab, d)
    return shapes
