"""The schema of `bundle.json`: the one contract between export and everything that runs a bundle."""

from __future__ import annotations

import msgspec

FORMAT = 1
"""Readers accept exactly this version; there is no compatibility code."""

MANIFEST = "bundle.json"


class FileEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One file of the bundle, its size in bytes and its lower-case hex sha256."""

    size: int
    sha256: str


class RopeEntry(msgspec.Struct, forbid_unknown_fields=True):
    """What the host needs to compute the cos/sin inputs."""

    dim: int
    theta: float


class GraphEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One graph file. `width` and `capacity` are null while they are symbolic in the file (the CPU's
    graph)."""

    file: str
    provider: str
    precision: str
    width: int | None = None
    capacity: int | None = None


class ModelEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A target or a draft: its sizes, its cache, its graphs.

    `context` is the cache capacity C in slots, at most what the checkpoint was trained for. `widths` are
    those a device compiles. The mask adds `mask_value` where a column is not visible.
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
    outputs_hidden: bool
    graphs: list[GraphEntry]
    parameters: int


class TokenizerEntry(msgspec.Struct, forbid_unknown_fields=True):
    """The tokenizer file, its chat template file, and what ends or begins a text."""

    file: str
    chat_template: str | None
    stop_tokens: list[int]
    bos: int | None
    special: dict[str, str]
    vocab_hash: str


class Provenance(msgspec.Struct, forbid_unknown_fields=True):
    """Where a model came from: the checkpoint's file or folder name, never a path of the exporting
    machine."""

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
"""The only layout so far; vendor graphs with a past of C-T columns will name another."""
