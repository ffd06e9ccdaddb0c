"""The real model the figures are measured on, exported once into the cache."""

from __future__ import annotations

from pathlib import Path

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.models.cache_folder import cache_folder
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.fetch import fetch_smollm2


def smollm2_bundle() -> Bundle:
    """The demonstration bundle; `hexgraft demo` keeps it at the same place."""
    path = cache_folder() / "bundles" / "smollm2-135m-instruct"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_bundle(
            open_checkpoint(fetch_smollm2()), path, options=ExportOptions(), report=lambda step: None
        )
    return open_bundle(path)


def smollm2_checkpoint() -> Path:
    return fetch_smollm2()
