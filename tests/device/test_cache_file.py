"""The runner's cache file: what a killed runner leaves, another one goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import NoDraft
from hexgraft.host.runner.cache_file import CacheFile
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession

TEXT = [int(token) for token in np.random.default_rng(7).integers(3, 300, 150)]
IDENTITY = ("bundle", "target", (1, 8))


@contextmanager
def session(binary: Path, bundle: Bundle, folder: Path) -> Iterator[RunnerSession]:
    """One whose runner is killed at the end, as by a lost link."""
    runner = LocalRunner(binary, options=["--caches", str(folder)])
    try:
        yield RunnerSession(runner.connection, str(bundle.path))
    finally:
        runner.process.kill()
        runner.process.wait()
        runner.close()


def decoder(session: RunnerSession, tokens: int = 20) -> Decoder:
    return Decoder(session, options=DecodeOptions(max_tokens=tokens, tree_size=1))


def test_another_runner_goes_on(binary: Path, bundle: Bundle, tmp_path: Path) -> None:
    with session(binary, bundle, tmp_path) as first:
        whole = decoder(first)
        whole.begin(TEXT)
        expected = [token for current in whole.rounds() for token in current.tokens]

    with session(binary, bundle, tmp_path) as first:
        running, file = decoder(first), CacheFile(first, IDENTITY)
        running.begin(TEXT, lambda count: file.keep(running.tokens[: running.committed]))
        for _ in range(9):
            running.step()
            file.keep(running.tokens[: running.committed])
        assert file.count == len(TEXT) - 1 + 8  # the last one waits for the next message
        kept = first.save(len(TEXT) + 8)
        assert file.count == len(TEXT) + 8

    with session(binary, bundle, tmp_path) as second:
        file = CacheFile(second, IDENTITY)
        held = file.recall(running.tokens[:-1])
        assert held == len(TEXT) + 8
        rows = second.save(held)
        np.testing.assert_array_equal(rows.keys, kept.keys)
        np.testing.assert_array_equal(rows.values, kept.values)
        prefilled: list[int] = []
        running.resume(second, NoDraft(), prefilled.append, held=held)
        assert prefilled == []
        while running.finish is None:
            running.step()
            file.keep(running.tokens[: running.committed])
        assert running.tokens == TEXT + expected
        second.close()
        assert list(tmp_path.iterdir()) == []


def test_what_was_recalled_may_be_read_again(binary: Path, bundle: Bundle, tmp_path: Path) -> None:
    """The file stays as it is until the text has grown beyond it."""
    with session(binary, bundle, tmp_path) as first:
        running, file = decoder(first), CacheFile(first, IDENTITY)
        running.begin(TEXT, lambda count: file.keep(running.tokens[: running.committed]))
        first.stats()
    with session(binary, bundle, tmp_path) as second:
        file = CacheFile(second, IDENTITY)
        assert file.recall(TEXT[:-1]) == len(TEXT) - 1
        running = decoder(second)
        filled: list[int] = []

        def follow(count: int) -> None:
            filled.append(count)
            file.keep(running.tokens[: running.committed])

        running.begin(TEXT, follow)
        assert len(filled) > 1
        assert file.count == len(TEXT) - 1
        running.step()
        file.keep(running.tokens[: running.committed])
        second.stats()
        assert file.count == len(TEXT)
    with session(binary, bundle, tmp_path) as third:
        assert CacheFile(third, IDENTITY).recall(running.tokens[:-1]) == len(TEXT)


def test_other_identities_and_texts(binary: Path, bundle: Bundle, tmp_path: Path) -> None:
    with session(binary, bundle, tmp_path) as first:
        running, file = decoder(first), CacheFile(first, IDENTITY)
        running.begin(TEXT, lambda count: file.keep(running.tokens[: running.committed]))
        first.stats()
    with session(binary, bundle, tmp_path) as second:
        assert CacheFile(second, ("another", *IDENTITY)).recall(TEXT[:-1]) == 0
        changed = [*TEXT[:100], TEXT[100] + 1, *TEXT[101:]]
        assert CacheFile(second, IDENTITY).recall(changed) == 96
        with pytest.MonkeyPatch.context():
            file = CacheFile(second, IDENTITY)
            file.keep(TEXT[:10])
            second.stats()
            assert file.count == 10


def test_a_file_that_cannot_be_written(binary: Path, bundle: Bundle, tmp_path: Path) -> None:
    """Decoding goes on, and why is told once."""
    problems: list[str] = []
    with session(binary, bundle, tmp_path / "none") as first:
        running, file = decoder(first), CacheFile(first, IDENTITY, problems.append)
        running.begin(TEXT, lambda count: file.keep(running.tokens[: running.committed]))
        while running.finish is None:
            running.step()
            file.keep(running.tokens[: running.committed])
        assert len(running.tokens) == len(TEXT) + 20
        assert not file.usable
        assert len(problems) == 1
        assert "none/target cannot be written: No such file or directory" in problems[0]
        assert file.recall(TEXT) == 0
