"""The acceptance table that a draft's training leaves beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hexgraft.models.errors import CheckpointError
from hexgraft.models.json_file import read_json

ACCEPTANCE = "acceptance.json"
"""Beside a draft: {"by_depth_and_rank": rates}."""


def read_acceptance(folder: Path) -> list[list[float]]:
    """How often a draft's best, second best, ... proposal at each depth was the target's token; nothing where
    no training has measured it. Raises CheckpointError for a table of anything but rates."""
    file = folder / ACCEPTANCE
    if not file.is_file():
        return []
    table = read_json(file).get("by_depth_and_rank")
    rows: list[Any] = table if isinstance(table, list) else [None]
    for row in rows:
        if (
            not isinstance(row, list)
            or not row
            or not all(isinstance(v, float | int) and 0 <= v <= 1 for v in row)
        ):
            raise CheckpointError(
                f"{file} is not a table of rates from 0 to 1 by depth and rank", "remove it, or train again"
            )
    return [[float(value) for value in row] for row in rows]
