"""What tells checkpoints of one name apart, wherever their files lie and whenever they were copied there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hexgraft.models.checkpoint_files import files_of

_SAMPLES = 256
"""Places of a file that are read: weights that were trained on differ nearly everywhere."""
_BYTES = 4096


def fingerprint(path: Path) -> str:
    """A hex sha256 over names, sizes and samples of a checkpoint's config and weights."""
    digest = hashlib.sha256()
    for file in files_of(path):
        if file.name != "config.json" and file.suffix not in (".safetensors", ".gguf"):
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode("utf-8", "surrogateescape"))
        with file.open("rb") as stream:
            for start in range(0, size, max(_BYTES, -(-size // _SAMPLES))):
                stream.seek(start)
                digest.update(stream.read(_BYTES))
    return digest.hexdigest()
