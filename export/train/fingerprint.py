"""What tells checkpoints of one name apart, wherever their files lie and whenever they were copied there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hexgraft.models.gguf_file import parts_of

_SAMPLES = 256
"""Places of a file that are read: weights that were trained on differ nearly everywhere."""
_BYTES = 4096


def fingerprint(path: Path) -> str:
    """A hex sha256 over names, sizes and samples of a checkpoint's config and weights."""
    files = [file for file in parts_of(path) if file.is_file()]
    files = files or [*path.glob("config.json"), *sorted(path.glob("*.safetensors"))]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode("utf-8", "surrogateescape"))
        with file.open("rb") as stream:
            for start in range(0, size, max(_BYTES, -(-size // _SAMPLES))):
                stream.seek(start)
                digest.update(stream.read(_BYTES))
    return digest.hexdigest()
