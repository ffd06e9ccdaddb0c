"""What `genie_config.json` and the backend extension file say, as far as hexgraft writes it.

Keys and their meaning are those that libGenie's API 1.21 accepts for a `basic` dialog on QnnHtp.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from hexgraft.host.manifest import ModelEntry, RopeEntry, TokenizerEntry
from hexgraft.models.errors import CheckpointError, ExportError
from hexgraft.models.rope_scaling import linear_rope, llama3_rope, plain_rope

EXTENSIONS = "htp_backend_ext_config.json"
CONFIG = "genie_config.json"
_LLAMA3 = ((1.0, 4.0, 8192),)
"""Low and high frequency factors and original context that models with llama3's scaling have."""


class _Block(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    """A JSON object of a config; unset fields are left out."""


class Scaling(_Block):
    rope_type: Literal["llama3", "linear"]
    factor: float
    low_freq_factor: float | UnsetType = UNSET
    high_freq_factor: float | UnsetType = UNSET
    original_max_position_embeddings: int | UnsetType = UNSET


class Positions(_Block):
    """RoPE over `rope_dim` pairs of a head."""

    type: Literal["rope"]
    rope_dim: int
    rope_theta: float
    rope_scaling: Scaling | UnsetType = UNSET


class Context(_Block):
    """`size` is CL; a `bos_token` of -1 is none."""

    version: Literal[1]
    size: int
    n_vocab: int
    bos_token: int
    eos_token: list[int] | int


class Sampler(_Block):
    version: Literal[1]
    seed: int
    temp: float
    top_k: int | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    greedy: bool | UnsetType = UNSET


class TokenizerFile(_Block):
    version: Literal[1]
    path: str


class QnnHtp(_Block):
    """`pos_id_dim` and `rope_theta` where RoPE is plain; `execute_select_graphs` names the graphs to use of
    binaries that hold more."""

    version: Literal[1]
    use_mmap: bool
    spill_fill_bufsize: int
    mmap_budget: int
    poll: bool
    cpu_mask: str
    kv_dim: int
    allow_async_init: bool
    pos_id_dim: int | UnsetType = UNSET
    rope_theta: float | UnsetType = UNSET
    execute_select_graphs: list[str] | UnsetType = UNSET


class Backend(_Block):
    version: Literal[1]
    type: Literal["QnnHtp"]
    extensions: str
    qnn_htp: QnnHtp = msgspec.field(name="QnnHtp")


class Binaries(_Block):
    version: Literal[1]
    ctx_bins: list[str]


class Source(_Block):
    version: Literal[1]
    type: Literal["binary"]
    binary: Binaries
    positional_encoding: Positions | UnsetType = UNSET


class Engine(_Block):
    version: Literal[1]
    n_threads: int
    backend: Backend
    model: Source


class Dialog(_Block):
    version: Literal[1]
    type: Literal["basic"]
    context: Context
    sampler: Sampler
    tokenizer: TokenizerFile
    engine: Engine


class GenieConfig(_Block):
    dialog: Dialog


class Core(msgspec.Struct, forbid_unknown_fields=True):
    core_id: int
    perf_profile: str
    rpc_control_latency: int


class Device(msgspec.Struct, forbid_unknown_fields=True):
    soc_model: int
    dsp_arch: str
    cores: list[Core]


class Memory(msgspec.Struct, forbid_unknown_fields=True):
    mem_type: Literal["shared_buffer"]


class ContextOptions(msgspec.Struct, forbid_unknown_fields=True):
    weight_sharing_enabled: bool


class Extensions(msgspec.Struct, forbid_unknown_fields=True):
    """The backend extension file: the chip, and how its context is made."""

    devices: list[Device]
    memory: Memory
    context: ContextOptions


def genie_config(
    model: ModelEntry, tokenizer: TokenizerEntry, columns: int, binaries: list[str], graphs: list[str]
) -> GenieConfig:
    """The dialog of a model whose graphs have `columns` CL; `graphs` are those to use, none for all.

    Raises ExportError where its RoPE cannot be said in Genie's words.
    """
    positions = positions_of(model.rope)
    plain = positions.rope_scaling is UNSET
    htp = QnnHtp(
        version=1,
        use_mmap=True,
        spill_fill_bufsize=0,
        mmap_budget=0,
        poll=True,
        cpu_mask="0xe0",
        kv_dim=model.head_dim,
        allow_async_init=False,
        pos_id_dim=positions.rope_dim if plain else UNSET,
        rope_theta=positions.rope_theta if plain else UNSET,
        execute_select_graphs=graphs or UNSET,
    )
    source = Source(1, "binary", Binaries(1, binaries), UNSET if plain else positions)
    bos = tokenizer.bos if tokenizer.bos is not None else -1
    context = Context(1, columns, model.vocab, bos, list(tokenizer.stop_tokens) or -1)
    engine = Engine(1, 3, Backend(1, "QnnHtp", EXTENSIONS, htp), source)
    files = TokenizerFile(1, "tokenizer.json")
    return GenieConfig(Dialog(1, "basic", context, _sampler(tokenizer.generation), files, engine))


def _sampler(generation: dict[str, float]) -> Sampler:
    """As the model's authors sample, greedy where they do not say."""
    temperature = generation.get("temperature", 0.0)
    if temperature <= 0:
        return Sampler(version=1, seed=42, temp=0.0, greedy=True)
    return Sampler(
        version=1,
        seed=42,
        temp=temperature,
        top_k=int(generation["top_k"]) if "top_k" in generation else UNSET,
        top_p=generation.get("top_p", UNSET),
    )


def positions_of(rope: RopeEntry) -> Positions:
    """Theta and scaling out of plain frequencies: Genie computes its tables from these."""
    frequencies, half = rope.frequencies, rope.dim // 2
    if rope.scale != 1 or half < 2 or min(frequencies) <= 0:
        raise _unsayable()
    theta = _rounded((frequencies[1] / frequencies[0]) ** (-rope.dim / 2))
    try:
        factor = _rounded(1 / frequencies[0])
        if _same(frequencies, plain_rope(rope.dim, theta).frequencies):
            return Positions("rope", half, theta)
        if _same(frequencies, linear_rope(rope.dim, theta, factor).frequencies):
            return Positions("rope", half, theta, Scaling("linear", factor))
        factor = _rounded(theta ** (2 / rope.dim - 1) / frequencies[-1])
        for low, high, original in _LLAMA3:
            if _same(frequencies, llama3_rope(rope.dim, theta, factor, low, high, original).frequencies):
                scaling = Scaling("llama3", factor, low, high, original)
                return Positions("rope", half, theta, scaling)
    except CheckpointError as error:
        raise _unsayable() from error
    raise _unsayable()


def _unsayable() -> ExportError:
    return ExportError(
        "the model's RoPE is neither plain, nor linear, nor Llama 3's, which is what Genie is told here",
        "run the bundle with hexgraft's own runner, which takes any frequencies",
    )


def _rounded(number: float) -> float:
    """The number of few digits that rounding in a checkpoint reader has blurred."""
    near = float(f"{number:.9g}")
    return round(near) if abs(near - round(near)) < 1e-6 * max(near, 1) else near


def _same(a: list[float], b: tuple[float, ...]) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= 1e-5 * y for x, y in zip(a, b, strict=True))
