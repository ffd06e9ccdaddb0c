"""The writer of bundles: whole or not at all, whatever happens in between."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

import pytest

from hexgraft.export.writer import ExportOptions, Step, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import ExportError

OPTIONS = ExportOptions((1, 8), 64)


def export(checkpoint: Path, path: Path, report: Callable[[Step], None] = lambda step: None) -> None:
    export_bundle(open_checkpoint(checkpoint), path, options=OPTIONS, report=report)


def test_an_export_leaves_nothing_but_the_bundle(checkpoint: Path, tmp_path: Path) -> None:
    steps: list[Step] = []
    export(checkpoint, tmp_path / "bundle", steps.append)
    assert [file.name for file in tmp_path.iterdir()] == ["bundle"]
    bundle = open_bundle(tmp_path / "bundle")
    bundle.verify()
    assert bundle.target.widths == [1, 8]
    assert bundle.target.context == 64
    assert "/" not in bundle.manifest.provenance["target"].checkpoint
    by_name = {step.what: step for step in steps}
    assert set(by_name) == {"target weights", "checksums"}
    assert all(step.done == step.total for step in by_name.values())


def test_two_exports_are_equal_byte_for_byte(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "a")
    export(checkpoint, tmp_path / "b")
    assert open_bundle(tmp_path / "a").digest == open_bundle(tmp_path / "b").digest


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling link"])
def test_what_stands_at_the_name_is_kept(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bundle"
    if kind == "folder":
        path.mkdir()
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(ExportError, match="exists already") as caught:
        export(checkpoint, path)
    assert caught.value.hint == f"choose another name, or remove it: rm -r {quote(str(path))}"
    assert [file.name for file in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_quicker_of_two_exports_stays(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "my bundle"

    def report(step: Step) -> None:
        if step.what == "checksums" and not path.exists():
            if kind == "folder":
                path.mkdir()
                (path / "mine").touch()
            else:
                path.touch()

    with pytest.raises(ExportError, match="exists already") as caught:
        export_bundle(open_checkpoint(checkpoint), path, options=OPTIONS, report=report)
    assert caught.value.hint == f"choose another name, or remove it: rm -r {quote(str(path))}"
    assert [file.name for file in tmp_path.iterdir()] == ["my bundle"]


def test_a_missing_parent_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="does not exist") as caught:
        export(checkpoint, tmp_path / "no" / "where")
    assert caught.value.hint == f"mkdir -p {quote(str(tmp_path / 'no'))}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("when", ["target weights", "checksums"])
def test_an_interrupted_export_leaves_nothing(
    checkpoint: Path, tmp_path: Path, error: type[BaseException], when: str
) -> None:
    def report(step: Step) -> None:
        if step.what == when:
            raise error

    with pytest.raises(error):
        export(checkpoint, tmp_path / "bundle", report)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [1000, 20_000])
def test_a_full_disk_is_said_and_leaves_nothing(checkpoint: Path, tmp_path: Path, size: int) -> None:
    """A limit on the size of files fails writes as a full disk does."""
    with file_size_limit(size), pytest.raises(ExportError, match="no space left for the bundle") as caught:
        export(checkpoint, tmp_path / "bundle")
    assert "df -h" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_small_disk_is_said_and_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(ExportError, match="no space left for the bundle"):
            export(checkpoint, disk / "bundle")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_that_cannot_be_written_is_said(checkpoint: Path) -> None:
    """/proc takes no folders, from anyone."""
    with pytest.raises(ExportError, match="cannot write the bundle in /proc") as caught:
        export(checkpoint, Path("/proc/bundle"))
    assert caught.value.hint


KILLED = """
import os, sys, signal
from pathlib import Path
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.models.checkpoint import open_checkpoint
def report(step):
    if step.what == "checksums":
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint, path = map(Path, sys.argv[1:])
export_bundle(open_checkpoint(checkpoint), path, options=ExportOptions((1, 8), 64), report=report)
"""


@pytest.mark.parametrize("name", ["bundle", "a [strange] name*"])
def test_a_killed_export_is_swept_by_the_next(checkpoint: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    done = subprocess.run([sys.executable, "-c", KILLED, checkpoint, path])
    assert done.returncode == -signal.SIGKILL
    left = [file.name for file in tmp_path.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(f".{name}.partial-")
    export(checkpoint, path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    open_bundle(path).verify()


def test_the_folder_of_a_running_export_is_not_swept(checkpoint: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        running = tmp_path / f".bundle.partial-{other.pid}"
        running.mkdir()
        export(checkpoint, tmp_path / "bundle")
        assert running.is_dir()
        other.communicate(b"\n")
