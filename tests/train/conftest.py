"""What heads are trained for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair import write_pair


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a target alone, beside its checkpoint; no test changes them."""
    return write_pair(tmp_path_factory.mktemp("target"), noise=None, layers=4)
