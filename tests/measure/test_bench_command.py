"""`hexgraft bench` refuses in words what it cannot measure, before it measures."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import error_of, hexgraft
from pair import make_pair


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


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "b", "--cool-to", "nan"),
        ("bench", "b", "--cool-timeout", "inf"),
        ("train-draft", "b", "-o", "d", "--minutes", "nan"),
        ("compare", "a", "b", "--noise", "nan"),
        ("device", "loopback", "--rate", "nan"),
        ("device", "loopback", "--drop", "inf"),
    ],
)
def test_numbers_are_numbers(command: tuple[str, ...]) -> None:
    result = hexgraft(*command)
    assert result.exit_code == 2, result.stderr
    assert "is not a number" in result.stderr
