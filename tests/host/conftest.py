"""Bundles and traces for the tests of commands: written once, and changed by none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import hexgraft
from pair import write_pair

from hexgraft.export.writer import ExportOptions


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pair's bundle and the two checkpoints it is made of."""
    return write_pair(tmp_path_factory.mktemp("pair")).parent


@pytest.fixture(scope="session")
def bundle(pair: Path) -> Path:
    return pair / "bundle"


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose context takes seconds to fill."""
    folder = tmp_path_factory.mktemp("endless")
    return write_pair(folder, noise=None, context=8192, options=ExportOptions((1, 8), 8192))


@pytest.fixture(scope="session")
def traces(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What one prompt gives with trees, without, in graphs of few widths, and drawn."""
    folder = tmp_path_factory.mktemp("traces")
    words = ("-p", "the quick brown fox and the quick brown dog and the quick", "--raw", "--max-tokens", "30")
    made = {}
    for name, options in {
        "levels": ["--draft", "levels"],
        "plain": ["--plain"],
        "padded": ["--draft", "lookup", "--widths", "bundle"],
        "warm": ["--temperature", "1"],
    }.items():
        made[name] = folder / f"{name}.jsonl"
        done = hexgraft("run", bundle, *words, "--trace", made[name], *options)
        assert done.exit_code == 0, done.stderr
    return made
