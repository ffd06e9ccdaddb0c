"""Builds the runner once a session, as a user would, and exports the tiny pair it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from device_command import hexgraft  # noqa: F401  a fixture
from native_build import built
from pair import make_pair
from phones import android, connect, device, one_server, phone, server  # noqa: F401  fixtures

from hexgraft.export.writer import ExportOptions
from hexgraft.host.adb.session import close_places
from hexgraft.host.bundle import Bundle
from hexgraft.host.runner.local import RUNNER, LocalRunner

CONTEXT = 600


@pytest.fixture(scope="session")
def build() -> Path:
    return built("linux-x86_64", "g++")


@pytest.fixture(scope="session")
def binary(build: Path) -> Path:
    return build / RUNNER


@pytest.fixture
def built_runner(binary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Phones get that runner, and no session on them outlives the test."""
    monkeypatch.setenv("HEXGRAFT_RUNNER", str(binary))
    yield
    close_places()


@pytest.fixture(scope="session")
def asan_build() -> Path:
    return built("asan", "g++")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(
        tmp_path_factory.mktemp("pair"), options=ExportOptions((1, 8, 16, 32), CONTEXT), context=CONTEXT
    )


@pytest.fixture(scope="module")
def runner(binary: Path) -> Iterator[LocalRunner]:
    runner = LocalRunner(binary)
    yield runner
    runner.close()
