"""Where things are kept for a user: as the environment says, or below the home folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hexgraft.models.errors import UsageError
from hexgraft.models.user_folders import cache_folder, state_folder

KINDS = [("CACHE", cache_folder, ".cache"), ("STATE", state_folder, ".local/state")]


@pytest.mark.parametrize(("kind", "folder", "below_home"), KINDS)
def test_folders_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, folder: Callable[[], Path], below_home: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv(f"HEXGRAFT_{kind}", str(tmp_path / "own"))
    assert folder() == tmp_path / "own"
    monkeypatch.setenv(f"HEXGRAFT_{kind}", "~/own")
    assert folder() == tmp_path / "own"
    monkeypatch.delenv(f"HEXGRAFT_{kind}")
    assert folder() == tmp_path / "xdg" / "hexgraft"
    monkeypatch.delenv(f"XDG_{kind}_HOME")
    assert folder() == tmp_path / below_home / "hexgraft"


@pytest.mark.parametrize(("kind", "folder", "below_home"), KINDS)
def test_a_user_without_a_home_is_told_which_variable(
    monkeypatch: pytest.MonkeyPatch, kind: str, folder: Callable[[], Path], below_home: str
) -> None:
    monkeypatch.setenv(f"HEXGRAFT_{kind}", "~nobody-of-this-name/x")
    with pytest.raises(UsageError, match="there is no home folder for ~nobody-of-this-name/x") as caught:
        folder()
    assert f"HEXGRAFT_{kind}=" in str(caught.value.hint)
