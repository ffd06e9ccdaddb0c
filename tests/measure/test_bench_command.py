"""`hexgraft bench` refuses in words what it cannot measure, before it measures."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from command import error_of, hexgraft, last_error_of
from pair import make_pair

from hexgraft.host.atomic_file import cannot_write


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("bench")).path


def test_a_fill_beyond_the_cache_is_refused_not_left_out(bundle: Path) -> None:
    message, hint = error_of(hexgraft("bench", bundle, "--fills", "0,99999"))
    assert message.startswith("--fills 99999 does not fit")
    assert hint.startswith("give at most ")


def test_a_folder_is_no_file_to_write_to(bundle: Path, tmp_path: Path) -> None:
    message, hint = error_of(hexgraft("bench", bundle, "-o", tmp_path))
    assert message == f"-o {tmp_path} is a folder"
    assert hint == f"example: -o {tmp_path / 'profile.json'}"


def test_a_profile_that_cannot_be_written_is_shown_all_the_same(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes, *, replace: bool) -> None:
        raise cannot_write(path, OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr("hexgraft.host.measure.profile.write_whole", full)
    output = tmp_path / "profile.json"
    words = ("bench", bundle, "--repeats", "1", "--warmup", "0", "--fills", "16", "--max-tokens", "4")
    result = hexgraft(*words, "-o", output, "--json")
    assert last_error_of(result)[0] == f"no space left for {output}"
    assert json.loads(result.stdout)["format"] == 1


def test_a_folder_that_takes_no_file_is_said_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(dir: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(dir / "tmp"))

    monkeypatch.setattr("hexgraft.host.atomic_file.TemporaryFile", refuse)
    output = tmp_path / "profile.json"
    message, _ = error_of(hexgraft("bench", "no bundle", "-o", output))
    assert message == f"cannot write {output}: Read-only file system"


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "b", "--cool-to", "nan"),
        ("bench", "b", "--cool-timeout", "inf"),
        ("train-draft", "b", "-o", "d", "--minutes", "nan"),
        ("compare", "a", "b", "--noise", "nan"),
        ("replay", "a", "b", "--cache-noise", "nan"),
        ("device", "loopback", "--rate", "nan"),
        ("device", "loopback", "--drop", "inf"),
    ],
)
def test_numbers_are_numbers(command: tuple[str, ...]) -> None:
    result = hexgraft(*command)
    assert result.exit_code == 2, result.stderr
    assert "is not a number" in result.stderr
