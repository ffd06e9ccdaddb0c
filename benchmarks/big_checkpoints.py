"""Exports of checkpoints of 1.5B to 8B random weights: peak memory, and time against copying the checkpoint;
and the memory of making w4a16 graphs of them, stage by stage.

They take 3 to 16 GB of disk for the checkpoint and three times that for the rest, and are deleted afterwards.
HEXGRAFT_BIG names the sizes to run ("1.5B", "1.5B,3B"), TMPDIR the place.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.figure import Figure
from benchmarks.memory import stage_figures, watch
from hexgraft.models.config import tensor_shapes
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.hf_names import hf_sources

SHARD = 4 << 30
SIZES: dict[str, dict[str, Any]] = {
    "1.5B": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "heads": (12, 2)},
    "3B": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "heads": (16, 2)},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "heads": (32, 8)},
}
PEAK = {"1.5B": 4.0, "3B": 4.0, "8B": 6.0}


def figures() -> Iterator[Figure]:
    for name in os.environ.get("HEXGRAFT_BIG", "1.5B").split(","):
        with tempfile.TemporaryDirectory(prefix="hexgraft-big-") as folder:
            yield from _figures(name, Path(folder))


def _figures(name: str, folder: Path) -> Iterator[Figure]:
    checkpoint = write_random_checkpoint(folder / name, SIZES[name])
    size = sum(file.stat().st_size for file in checkpoint.iterdir())
    yield Figure(f"checkpoint of {name}, bfloat16", size / 1e9, "GB")
    before = _copy(checkpoint, folder / "copy")
    start = time.perf_counter()
    command = [sys.executable, "-m", "hexgraft.host.cli", "export", str(checkpoint), "-o", str(folder / "b")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the export of {name} failed with exit code {process.returncode}")
    seconds = time.perf_counter() - start
    yield Figure(f"export of {name} to fp32, peak memory", usage.ru_maxrss / 1e6, "GB", f"<= {PEAK[name]}")
    yield Figure(f"export of {name} to fp32, whole command", seconds, "s")
    after = _copy(checkpoint, folder / "copy")
    copying = (before + after) / 2
    yield Figure(f"copy of {name} to the disk, before", before, "s")
    yield Figure(f"copy of {name} to the disk, after", after, "s")
    yield Figure(f"export of {name} over copying it", seconds / copying, "x", "<= 2.5")
    shutil.rmtree(folder / "b")
    yield from _graphs(name, checkpoint, folder / "npu")


def _copy(checkpoint: Path, to: Path) -> float:
    """Seconds until a copy is on the disk. They vary with what the system's cache holds."""
    start = time.perf_counter()
    shutil.copytree(checkpoint, to)
    os.sync()
    seconds = time.perf_counter() - start
    shutil.rmtree(to)
    return seconds


def _graphs(name: str, checkpoint: Path, output: Path) -> Iterator[Figure]:
    """What w4a16 graphs for the NPU take, before they are compiled."""
    command = [sys.executable, "-m", "benchmarks.npu_graphs", str(checkpoint), str(output), "w4a16"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stages = watch(process, output)
    if process.returncode:
        raise SystemExit(f"the graphs of {name} failed with exit code {process.returncode}")
    peak = max(stage.total for stage in stages.values())
    yield Figure(f"graphs of {name} at w4a16, peak memory", peak / 1e9, "GB", f"<= {PEAK[name]}")
    yield from stage_figures(f"graphs of {name} at w4a16", stages)


def write_random_checkpoint(folder: Path, size: dict[str, Any]) -> Path:
    """A Qwen2 folder of random bfloat16 weights, cut out of one pool, in shards."""
    heads, kv_heads = size["heads"]
    values = {key: value for key, value in size.items() if key != "heads"} | {
        "model_type": "qwen2",
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    _write_tokenizer(folder)
    config = config_from_hf(values)
    shapes, sources = tensor_shapes(config), hf_sources(config, ())
    pool = (np.random.default_rng(0).standard_normal(16 << 20) * 0.02).astype(ml_dtypes.bfloat16)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in shapes.items():
        count = 2 * int(np.prod(shape))
        if filled + count > SHARD and shards[-1]:
            shards.append({})
            filled = 0
        shards[-1][sources[name].tensor] = shape
        filled += count
    index = {}
    for number, members in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / file, members, pool)
        index |= dict.fromkeys(members, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def _write_shard(path: Path, members: dict[str, tuple[int, ...]], pool: NDArray[Any]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in members.items():
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, shape in enumerate(members.values()):
            left, start = int(np.prod(shape)), number * 4099 % (1 << 20)
            while left:
                part = pool[start : start + left]
                file.write(part.tobytes())
                left, start = left - len(part), 0


def _write_tokenizer(folder: Path) -> None:
    tests = Path(__file__).parent.parent / "tests"
    sys.path.insert(0, str(tests))
    try:
        from tiny_tokenizer import write_tiny_tokenizer
    finally:
        sys.path.remove(str(tests))
    write_tiny_tokenizer(folder, 1000)
