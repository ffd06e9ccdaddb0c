"""The pair of tests: a tiny random target and its noisy copy as draft, exported to one bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.models.attention import CHOSEN
from hexgraft.models.checkpoint import open_checkpoint


def write_pair(
    folder: Path, *, noise: float | None = 0.1, options: ExportOptions | None = None, **sizes: Any
) -> Path:
    """Export a tiny pair below `folder` and return the bundle's path; without noise, a target alone."""
    target = write_tiny_hf(folder / "target-checkpoint", **sizes)
    draft = None
    if noise is not None:
        draft = open_checkpoint(write_tiny_hf(folder / "draft-checkpoint", noise_of=target, noise=noise))
    export_bundle(
        open_checkpoint(target),
        folder / "bundle",
        draft=draft,
        options=options or ExportOptions((1, 8, 16, 32), 256),
        report=lambda step: None,
    )
    return folder / "bundle"


def packed_bundle(checkpoint: Path, path: Path, precision: str, context: int = 256) -> Bundle:
    """A checkpoint alone, exported at a precision of the CPU's graph as `hexgraft export` does."""
    options = ExportOptions((1, 8, 16), context, precision=precision, attention=CHOSEN)
    export_bundle(open_checkpoint(checkpoint), path, options=options, report=lambda step: None)
    return open_bundle(path)


def make_pair(folder: Path, **arguments: Any) -> Bundle:
    """`write_pair`, opened."""
    return open_bundle(write_pair(folder, **arguments))
