"""Draft heads that come with hexgraft, by name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hexgraft.models.acceptance import ACCEPTANCE

_FOLDER = Path(__file__).parent / "heads"
SMOLLM2_HEAD = "smollm2-135m-instruct"
SMOLLM2_PAIR = "smollm2-135m-instruct-head"
"""The bundle of SmolLM2 and its head in the cache."""
SMOLLM2_HEAD_PRECISION = "w8a8"
"""Of the head's CPU graph there: its passes take half as long as in fp32, and it drafts as well."""


def shipped_head(name: str) -> Path | None:
    """The folder of a head that comes with hexgraft, None if there is none of this name."""
    return _FOLDER / name if name in shipped_heads() else None


def shipped_origin(name: str) -> str:
    """Which head goes by a name now, as a bundle says where its draft is from: the name, and the beginning of
    a sha256 over what an export reads of it."""
    digest = hashlib.sha256()
    for file in ("config.json", "model.safetensors", ACCEPTANCE):
        digest.update(hashlib.sha256((_FOLDER / name / file).read_bytes()).digest())
    return f"{name}@{digest.hexdigest()[:12]}"


def shipped_heads() -> list[str]:
    """Names of the heads that come with hexgraft."""
    return sorted(folder.name for folder in _FOLDER.glob("*") if (folder / "config.json").is_file())
