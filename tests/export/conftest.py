"""What tests of exports read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import write_tiny_hf


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, which no test changes."""
    return write_tiny_hf(tmp_path_factory.mktemp("tiny") / "target")
