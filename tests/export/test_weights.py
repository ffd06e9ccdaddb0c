"""Exports take the memory of blocks and of the largest layer matrix, and go on where a killed one stopped."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import Sizes, hf_config, tiny_weights, write_tiny_hf
from tiny_tokenizer import write_tiny_tokenizer

from hexgraft.export import weights, weights_file
from hexgraft.export.weights_file import WeightsFile
from hexgraft.export.writer import ExportOptions, Step, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint

ROWS = 400_000
CODE = """
import re, sys
from pathlib import Path
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.models.checkpoint import open_checkpoint
def peak():  # not getrusage: that counts what the parent had at the fork
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
checkpoint = open_checkpoint(Path(sys.argv[1]))
before = peak()
export_bundle(checkpoint, Path(sys.argv[2]), options=ExportOptions((1,), 64), report=lambda step: None)
print((peak() - before) >> 10)
"""


def write_wide_checkpoint(folder: Path) -> int:
    """A folder whose embedding has ROWS rows, zeros in a hole of the file; returns its bytes in float32."""
    sizes = Sizes(layers=1, hidden=128)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf_config(sizes, "float16") | {"vocab_size": ROWS}))
    write_tiny_tokenizer(folder, 320)
    weights = {name: array for name, array in tiny_weights(sizes, 0).items() if "embed" not in name}
    header, offset = {}, 0
    shapes = {name: array.shape for name, array in weights.items()}
    for name, shape in (shapes | {"model.embed_tokens.weight": (ROWS, 128)}).items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in weights.values():
            file.write(array.astype(np.float16).tobytes())
        file.truncate(8 + len(text) + offset)
    return 4 * ROWS * 128


def test_memory_is_bounded_by_blocks(tmp_path: Path) -> None:
    size = write_wide_checkpoint(tmp_path / "m")
    command = [sys.executable, "-c", CODE, str(tmp_path / "m"), str(tmp_path / "b")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (tmp_path / "b" / "target" / "model.weights").stat().st_size > size > 200e6
    assert int(done.stdout) < 100  # MB


KILLED = """
import os, signal, sys
from pathlib import Path
from hexgraft.export import weights
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.models.checkpoint import open_checkpoint
weights.SYNC_BYTES = 1
checkpoint, read = open_checkpoint(Path(sys.argv[1])), []
blocks = checkpoint.blocks
def counted(name):
    read.append(name)
    if name == "layers.2.gate":
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks(name)
checkpoint.blocks = counted
export_bundle(checkpoint, Path(sys.argv[2]), options=ExportOptions((1,), 64), report=lambda step: None)
"""


def test_a_killed_export_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_hf(tmp_path / "m", layers=3)
    options = ExportOptions((1,), 64)
    export_bundle(open_checkpoint(folder), tmp_path / "fresh", options=options, report=lambda step: None)
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "b")]
    assert subprocess.run(command, check=False).returncode == -9
    (leftover,) = tmp_path.glob(".b.partial-*")
    checkpoint, read, steps = open_checkpoint(folder), list[str](), list[Step]()
    blocks = checkpoint.blocks
    monkeypatch.setattr(checkpoint, "blocks", lambda name: read.append(name) or blocks(name))
    export_bundle(checkpoint, tmp_path / "b", options=options, report=steps.append)
    # Everything before the weight it was killed in was on the disk, but for one that may have been on its
    # way.
    assert read[-4:] == ["layers.2.gate", "layers.2.up", "layers.2.down", "norm"]
    assert len(read) <= 5
    assert steps[0].done > steps[0].total / 2
    assert not leftover.exists()
    for file in sorted(file for file in (tmp_path / "fresh").rglob("*") if file.is_file()):
        twin = tmp_path / "b" / file.relative_to(tmp_path / "fresh")
        assert twin.read_bytes() == file.read_bytes(), file
    open_bundle(tmp_path / "b").verify()


@pytest.mark.parametrize("change", ["context", "checkpoint"])
def test_another_export_begins_anew(tmp_path: Path, change: str) -> None:
    folder = write_tiny_hf(tmp_path / "m", layers=3)
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "b")]
    assert subprocess.run(command, check=False).returncode == -9
    if change == "checkpoint":
        os.utime(folder / "model.safetensors", (0, 0))
    steps: list[Step] = []
    options = ExportOptions((1,), 64 if change == "checkpoint" else 32)
    export_bundle(open_checkpoint(folder), tmp_path / "b", options=options, report=steps.append)
    assert steps[0].done == 0
    assert {path.name for path in tmp_path.iterdir()} == {"m", "b"}


@pytest.mark.parametrize("seed", [0, 1])
def test_exports_of_one_process_number_keep_apart(tmp_path: Path, seed: int) -> None:
    """As in containers, where each is process 1: the weights of another model are not gone on with, one's
    own are."""
    folder = write_tiny_hf(tmp_path / "m", layers=3)
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "b")]
    assert subprocess.run(command, check=False).returncode == -9
    (leftover,) = tmp_path.glob(".b.partial-*")
    leftover.rename(tmp_path / f".b.partial-{os.getpid()}")
    checkpoint = open_checkpoint(folder if seed == 0 else write_tiny_hf(tmp_path / "n", layers=3, seed=seed))
    options, steps = ExportOptions((1,), 64), list[Step]()
    export_bundle(checkpoint, tmp_path / "b", options=options, report=steps.append)
    export_bundle(checkpoint, tmp_path / "fresh", options=options, report=lambda step: None)
    assert open_bundle(tmp_path / "b").manifest.files == open_bundle(tmp_path / "fresh").manifest.files
    assert (steps[0].done > 0) == (seed == 0)
    assert not list(tmp_path.glob(".b.*"))


def test_a_weights_file_is_hashed_as_it_lies_on_the_disk(tmp_path: Path) -> None:
    """Blocks, gaps, a sync in the background, and going on with the front of a file."""
    blocks = [np.arange(n, dtype=np.float32) for n in (1000, 3_000_000, 5)]
    places, size = (0, 8192, 12_100_000), 12_200_000
    told: list[int] = []
    for start in (0, 8192):
        with WeightsFile(tmp_path / "w", size, start) as file:
            for block, place in zip(blocks, places, strict=True):
                if place >= start:
                    file.write(block, place)
                    file.sync_behind(lambda place=place: told.append(place))  # type: ignore[misc]
            digest = file.digest()
        data = (tmp_path / "w").read_bytes()
        assert len(data) == size
        assert digest == hashlib.sha256(data).hexdigest()
        for block, place in zip(blocks, places, strict=True):
            assert data[place : place + block.nbytes] == block.tobytes()
    assert told == [0, 8192, 12_100_000, 8192, 12_100_000]


def test_buffers_may_be_filled_again_after_so_many_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far writer and hasher lag behind."""
    for step in ("_write", "_hash"):
        monkeypatch.setattr(WeightsFile, step, late(getattr(WeightsFile, step)))
    buffers = [np.zeros(100, np.float32) for _ in range(weights.BUFFERS)]
    with WeightsFile(tmp_path / "w", 400 * 12) as file:
        for number in range(12):
            buffer = buffers[number % weights.BUFFERS]
            buffer[:] = number
            file.write(buffer, 400 * number)
        digest = file.digest()
    data = (tmp_path / "w").read_bytes()
    assert np.frombuffer(data, np.float32)[::100].tolist() == list(range(12))
    assert digest == hashlib.sha256(data).hexdigest()


def late(step: Callable[..., None]) -> Callable[..., None]:
    def after_a_while(*arguments: Any) -> None:
        time.sleep(0.02)
        step(*arguments)

    return after_a_while


@pytest.mark.parametrize("cached", [1000, 500])
def test_what_of_a_large_file_is_on_the_disk_leaves_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: int
) -> None:
    done: list[tuple[str, int]] = []
    sync, drop = os.fdatasync, os.posix_fadvise

    def synced(file: int) -> None:
        sync(file)
        done.append(("synced", 0))

    def dropped(file: int, start: int, size: int, advice: int) -> None:
        drop(file, start, size, advice)
        assert (start, advice) == (0, os.POSIX_FADV_DONTNEED)
        done.append(("dropped", size))

    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(os, "posix_fadvise", dropped)
    monkeypatch.setattr(weights_file, "CACHED", cached)
    with WeightsFile(tmp_path / "w", 800) as file:
        for number in range(2):
            file.write(np.full(100, number, np.float32), 400 * number)
            file.sync_behind(lambda: done.append(("marked", 0)))
        file.digest()
    data = (tmp_path / "w").read_bytes()
    assert np.frombuffer(data, np.float32).tolist() == [0.0] * 100 + [1.0] * 100
    wanted = [("synced", 0), ("marked", 0), ("dropped", 400), ("synced", 0), ("marked", 0), ("dropped", 800)]
    assert done == [each for each in wanted if each[0] != "dropped" or cached < 800]


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    with WeightsFile(tmp_path / "w", 100) as file:
        file._stream.close()
        file.write(np.zeros(10, np.float32), 0)
        with pytest.raises((OSError, ValueError)):
            file.digest()
