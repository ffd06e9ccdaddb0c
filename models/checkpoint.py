"""What every checkpoint on disk looks like to the exporter: a config, tensors read in row blocks, a
tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.config import ModelConfig
from hexgraft.models.errors import CheckpointError, mistyped

BLOCK_BYTES = 8 << 20
"""Of float32 read at a time. Twice as much, and each block is fresh memory from the system, page by page."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a bundle carries of a tokenizer.

    `tokenizer_json` is the `tokenizers` library's own format. `stop_tokens` end a generation, in ascending
    order.
    `bos` is put once before a raw prompt (never before a chat template that writes it itself), None for none.
    `generation` is how the authors sample: `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`.
    `special` maps the names chat templates use (`bos_token`, `eos_token`, ...) to their text.
    """

    tokenizer_json: str
    chat_template: str | None
    stop_tokens: tuple[int, ...]
    bos: int | None
    special: dict[str, str] = field(default_factory=dict)
    generation: dict[str, float] = field(default_factory=dict)


class Checkpoint(Protocol):
    """A model on disk. Matrices come as [out, in] float32 under the canonical names of `tensor_shapes`."""

    path: Path
    config: ModelConfig
    tokenizer: TokenizerFiles
    name: str
    origin: str
    """For provenance: the file's or folder's name, or the id and commit on the hub; never a local path."""
    license: str | None
    source_format: str
    """For provenance: "GGUF Q4_1", "safetensors bfloat16"."""
    notes: list[str]
    """What an exporter should tell: where files disagree, what was dequantised or left out."""

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Consecutive row blocks of one tensor, of about BLOCK_BYTES each; vectors come in one block."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder, a GGUF file, or an id of the Hugging Face hub, which is then downloaded.

    Raises CheckpointError for anything else.
    """
    from hexgraft.models.gguf_checkpoint import GgufCheckpoint
    from hexgraft.models.hf_checkpoint import HfCheckpoint
    from hexgraft.models.hub import download, is_hub_id

    if path.is_dir():
        try:
            return HfCheckpoint(path)
        except CheckpointError as error:
            raise (_other_error(path) or error) from None
    if path.is_file():
        return GgufCheckpoint(path)
    if is_hub_id(path):
        found = download(path)
        checkpoint = open_checkpoint(found.path)
        checkpoint.name, checkpoint.origin = found.name, found.origin
        return checkpoint
    raise mistyped(
        CheckpointError(
            f"no checkpoint at {path}",
            "give a .gguf file or a Hugging Face model folder, or fetch one with `hexgraft fetch`",
        )
    )


def _other_error(path: Path) -> CheckpointError | None:
    """What to say of a folder that is no model because it is a bundle, a draft head or an adapter, or holds
    GGUF files."""
    from hexgraft.models.head_checkpoint import is_head
    from hexgraft.models.hub import adapter_error

    if (path / "bundle.json").is_file():
        hint = f"give what it was made of, see `hexgraft inspect {path}`"
        return CheckpointError(f"{path} is a bundle, not a checkpoint", hint)
    if not (path / "config.json").is_file():
        if error := adapter_error(path, str(path)):
            return error
        if files := sorted(path.glob("*.gguf")):
            return CheckpointError(
                f"{path} is a folder, and a model of GGUF is a file",
                f"give the file: {quote(str(files[0]))}"
                + (f", or another of the {len(files)} there" if files[1:] else ""),
            )
    try:
        head = is_head(path)
    except CheckpointError:
        return None
    hint = f"give its target, and --draft {path}"
    return CheckpointError(f"{path} is a draft head, not a model of its own", hint) if head else None
