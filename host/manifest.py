"""The schema of `bundle.json`: the one contract between export and everything that runs a bundle."""

from __future__ import annotations

import msgspec

FORMAT = 2
"""Readers accept exactly this version; there is no compatibility code."""

MANIFEST = "bundle.json"


class FileEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One file of the bundle, its size in bytes and its lower-case hex sha256."""

    size: int
    sha256: str


class RopeEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What the host needs to compute the cos/sin inputs: angles are position times `frequencies` (dim/2,
    radians a position, any scaling already in them), `scale` multiplies both cos and sin."""

    dim: int
    frequencies: list[float]
    scale: float


class HtpEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a graph compiled for the Hexagon NPU was compiled for: the chip, its HTP architecture, the QAIRT
    release, and the context `binary` its wrapper names (`shared` by the graphs of all widths, or its own).

    Graphs of one width with `parts` > 1 run one after the other, `part` 0 first: what one gives under a name,
    a later one takes under the same. `mask_value`, where it is set, takes the place of the model's.
    """

    soc: str
    soc_model: int
    arch: int
    qairt: str
    binary: str
    shared: bool = False
    vtcm_mb: int | None = None
    part: int = 0
    parts: int = 1
    mask_value: float | None = None


class Encoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Real numbers as integers of `dtype`: real = (stored - zero) * scale."""

    dtype: str
    scale: float
    zero: int


class KvEncoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one layer's keys and values are stored."""

    key: Encoding
    value: Encoding


class VendorEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A static graph of a bundle in the vendor's layout: its place among the parts of its width, the
    `encodings` of the inputs and outputs that are neither float32 nor cache (the mask, RoPE tables, logits),
    and whether its logits are those of the last row alone."""

    part: int = 0
    parts: int = 1
    encodings: dict[str, Encoding] = {}
    last_logits: bool = False


class GraphEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One graph file. `width` and `capacity` are null while they are symbolic in the file (the CPU's graph).

    `provider` is "cpu", "htp" (for the device) or "htp-sim" (for the emulator on a host). `htp` is set for
    the latter two, `vendor` in the layout `VENDOR_LAYOUT`.
    """

    file: str
    provider: str
    precision: str
    width: int | None = None
    capacity: int | None = None
    htp: HtpEntry | None = None
    vendor: VendorEntry | None = None


class HeadEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What makes a draft a head that reads the target's features.

    `kind` is "eagle" or "eagle3". Its graph takes `hidden_in` [1, T, hidden] and, where `feature_size` is not
    0, `features` [1, T, feature_size]: of the position before each row. Logits have `rows` columns; where
    these are not the whole vocabulary, the file `tokens` holds the id of each, ascending, as little-endian
    int32.
    """

    kind: str
    feature_size: int
    rows: int
    tokens: str | None = None


class ModelEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A target or a draft: its sizes, its cache, its graphs.

    `context` is the cache capacity C in slots, at most what the checkpoint was trained for. `widths` are
    those a device compiles, each at every one of `capacities` (ascending, the last one `context`; none: at
    `context` alone). The mask adds `mask_value` where a column is not visible. With a `window` the
    graphs take `attention_mask_local` too, where a row sees a column only if its position is less than
    `window` ahead of the column's; with a `local_rope` also `position_ids_cos_local` and `_sin_local`.

    The cache holds `kv_dtype` numbers; where these are integers, `kv_encodings` explains them layer by layer.

    `features` lists what the output `hidden` [1, T, len(features) * hidden] carries side by side: the
    residual stream after so many layers, the number of all `layers` standing for the state after the last
    norm. Without any there is no such output. A `head` gives its own state there, [1, T, hidden].

    `acceptance` says of a draft how often its best, second best, ... child of a node at each depth was the
    target's token, where its training has measured that.
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope: RopeEntry
    context: int
    widths: list[int]
    kv_dtype: str
    kv_layout: str
    mask_value: float
    graphs: list[GraphEntry]
    parameters: int
    window: int | None = None
    local_rope: RopeEntry | None = None
    capacities: list[int] = []
    features: list[int] = []
    head: HeadEntry | None = None
    kv_encodings: list[KvEncoding] = []
    acceptance: list[list[float]] = []

    @property
    def cpu_precision(self) -> str | None:
        """Of the graph for the CPU, where there is one."""
        return next((graph.precision for graph in self.graphs if graph.provider == "cpu"), None)

    @property
    def hidden_size(self) -> int:
        """Numbers in a row of the output `hidden`, 0 where there is none."""
        return self.hidden if self.head is not None else len(self.features) * self.hidden

    @property
    def logit_size(self) -> int:
        """Numbers in a row of logits."""
        return self.vocab if self.head is None else self.head.rows

    @property
    def device_capacities(self) -> list[int]:
        """How many slots the cache of a device may have, ascending; it grows from one to the next."""
        return self.capacities or [self.context]


class TokenizerEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The tokenizer file, its chat template file, and what ends or begins a text."""

    file: str
    chat_template: str | None
    stop_tokens: list[int]
    bos: int | None
    special: dict[str, str]
    vocab_hash: str
    generation: dict[str, float] = {}
    """How the model's authors sample, as they say: `temperature`, `top_k`, `top_p`, ..."""


class Provenance(msgspec.Struct, forbid_unknown_fields=True):
    """Where a model came from: the checkpoint's file or folder name, or its id and commit on the hub, never a
    path of the exporting machine."""

    checkpoint: str
    format: str
    license: str | None


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """`bundle.json`. `files` lists everything else in the folder; `parity` holds figures by graph file."""

    format: int
    hexgraft: str
    target: ModelEntry
    draft: ModelEntry | None
    tokenizer: TokenizerEntry
    provenance: dict[str, Provenance]
    parity: dict[str, dict[str, float]]
    files: dict[str, FileEntry]


KV_LAYOUT = "key[kv_heads,1,head_dim,C] value[kv_heads,1,C,head_dim] past=C"
"""What hexgraft exports: the cache has C columns whatever the width."""

JOINED_LAYOUT = "key[1,kv_heads,S,head_dim] value[1,kv_heads,S,head_dim] past=C rows=C..C+T-1"
"""What hexgraft exports with fused attention, for the CPU alone: the rows of a pass are written behind the
cache's C slots, into the buffer that is read."""

VENDOR_LAYOUT = "key[kv_heads,1,head_dim,CL-T] value[kv_heads,1,CL-T,head_dim] past=CL-T"
"""What Qualcomm AI Hub exports: CL columns in all, of which the last T are the rows of the pass. `capacity`
of a graph is CL-T, and `context` that of the widest: the slots that every width can address."""
