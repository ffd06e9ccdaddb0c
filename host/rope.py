"""The RoPE tables of a bundle's model, out of the frequencies its manifest gives."""

from __future__ import annotations

from hexgraft.host.manifest import RopeEntry
from hexgraft.models.config import Rope
from hexgraft.models.rope import RopeTable


def rope_table(entry: RopeEntry, context: int) -> RopeTable:
    """cos and sin of positions 0..context."""
    return RopeTable(Rope(entry.dim, tuple(entry.frequencies), entry.scale), context + 1)
