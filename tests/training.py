"""Trainings of a head that take seconds."""

from __future__ import annotations

from pathlib import Path

from click.testing import Result
from command import hexgraft

SMALL = ["--tokens", "600", "--texts", "24", "--new-tokens", "40", "--vocab", "64", "--batch", "512"]
SMALL += ["--epochs", "4", "--unroll", "2", "--full-precision", "--threads", "1", "--json"]


def run(*arguments: str | Path) -> Result:
    return hexgraft("train-draft", *arguments)
