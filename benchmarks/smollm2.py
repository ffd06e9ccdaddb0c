"""The real model the figures are measured on, exported once into the cache."""

from __future__ import annotations

from pathlib import Path

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.models.cache_folder import cache_folder
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.fetch import fetch_smollm2
from hexgraft.models.head_checkpoint import open_draft
from hexgraft.models.shipped_heads import SMOLLM2_HEAD, SMOLLM2_PAIR


def smollm2_bundle() -> Bundle:
    """SmolLM2 without a draft."""
    path = cache_folder() / "bundles" / "smollm2-135m-instruct"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_bundle(
            open_checkpoint(fetch_smollm2()), path, options=ExportOptions(), report=lambda step: None
        )
    return open_bundle(path)


def smollm2_pair() -> Bundle:
    """The demonstration bundle with its draft head, as `hexgraft demo` keeps it."""
    path = cache_folder() / "bundles" / SMOLLM2_PAIR
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        target = open_checkpoint(fetch_smollm2())
        head = open_draft(Path(SMOLLM2_HEAD), target)
        export_bundle(target, path, draft=head, options=ExportOptions(), report=lambda step: None)
    return open_bundle(path)


def smollm2_checkpoint() -> Path:
    return fetch_smollm2()
