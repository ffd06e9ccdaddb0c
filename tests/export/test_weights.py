"""Exports take the memory of blocks and of the largest layer matrix, never of the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from tiny import Sizes, hf_config, tiny_weights
from tiny_tokenizer import write_tiny_tokenizer

ROWS = 400_000
CODE = """
import resource, sys
from pathlib import Path
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.models.checkpoint import open_checkpoint
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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
