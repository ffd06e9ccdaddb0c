"""The comparison with other runtimes: equal weights in every format, workers that answer, fail or die."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import write_tiny_gguf

from hexgraft.export.cpu.packing import round_rows
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.config import tensor_shapes

ROOT = Path(__file__).resolve().parent.parent
SERVING = """
import sys
sys.path.insert(0, {peers!r})
from serving import Clock, serve

def load(model, threads, mode):
    if model.endswith("broken"):
        raise ValueError("no such model")
    print("what a library prints is not an answer")
    def generate(prompt, count):
        if prompt == [13]:
            raise KeyError("thirteen")
        if prompt == [14]:
            sys.exit(1)
        clock = Clock()
        clock.add(prompt)
        clock.add([threads, int(mode == 'lookup')] * count)
        return clock
    return generate

serve(load)
"""


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # benchmarks are no part of the installed package


def test_every_format_holds_the_same_weights(tmp_path: Path) -> None:
    from benchmarks.peers import models

    source = write_tiny_gguf(tmp_path / "m.gguf", quant="Q4_1")
    models.hf_folder(source, tmp_path / "hf")
    models.gguf_of(source, "F16", tmp_path / "half.gguf")
    models.gguf_of(source, "Q8_0", tmp_path / "eight.gguf")
    given, folder, half, eight = map(
        open_checkpoint,
        (source, tmp_path / "hf", tmp_path / "half.gguf", tmp_path / "eight.gguf"),
    )
    assert folder.config.rope.frequencies == pytest.approx(given.config.rope.frequencies, rel=1e-6)
    for one in (half, eight):
        assert one.config == given.config
        assert one.tokenizer == given.tokenizer
    for name, shape in tensor_shapes(given.config).items():
        exact, theirs, halved, rounded = (
            np.concatenate(list(one.blocks(name))) for one in (given, folder, half, eight)
        )
        np.testing.assert_array_equal(theirs, exact)
        if len(shape) == 1:
            np.testing.assert_array_equal(rounded, exact)
            continue
        np.testing.assert_array_equal(halved, exact.astype(np.float16))
        ours = round_rows(exact, 8).dequantised()
        # GGUF keeps its scales in half precision.
        np.testing.assert_allclose(rounded, ours, rtol=0, atol=1e-2 * np.abs(exact).max())


def test_workers_answer_fail_and_die(tmp_path: Path) -> None:
    from benchmarks.peers.environments import Missing
    from benchmarks.peers.worker import Worker

    script = tmp_path / "fake.py"
    script.write_text(SERVING.format(peers=str(ROOT / "benchmarks" / "peers")))
    python = Path(sys.executable)
    with pytest.raises(Missing, match="ValueError: no such model"):
        Worker(python, str(script), tmp_path / "broken", 2, "plain")
    with Worker(python, str(script), tmp_path, 2, "lookup") as worker:
        answer = worker.generate([5], 3)
        assert answer["tokens"] == [5, 2, 1]
        assert answer["timed"] == 6
        assert answer["seconds"] > 0
        with pytest.raises(Missing, match="KeyError: 'thirteen'"):
            worker.generate([13], 3)
        assert worker.generate([6], 1)["tokens"] == [6]
        with pytest.raises(Missing, match="ended without an answer"):
            worker.generate([14], 3)


def test_the_table_tells_ratios_and_where_outputs_part() -> None:
    from benchmarks.peers import table
    from benchmarks.peers.contest import Result

    speeds = {"chat": [10.0, 20.0, 40.0], "edit": [30.0, 60.0, 40.0]}
    ours = Result("hexgraft fp32", "plain", speeds, {"chat": [1, 2, 3, 4], "edit": [5, 6]})
    slow = {"chat": [5.0, 10.0, 80.0], "edit": [15.0, 30.0, 80.0]}
    theirs = Result("other", "plain", slow, {"chat": [1, 2, 9, 4], "edit": [5, 6, 7]})
    short = Result("third", "plain", {"chat": [20.0], "edit": [60.0]}, {"chat": [1], "edit": [7, 6]})
    lines = table("float", [ours, theirs, short]).splitlines()
    assert lines[0] == "| float | chat | edit | all | of ours | other texts |"
    assert lines[2] == "| hexgraft fp32, plain | 20.0 | 40.0 | 30.0 | 1.00x | none |"
    assert lines[3] == "| other, plain | 10.0 | 30.0 | 15.0 | 0.50x | 1 of 2, from 2 on |"
    assert lines[4] == "| third, plain | 20.0 | 60.0 | 30.0 | 2.00x | 2 of 2, from 0 on |"
