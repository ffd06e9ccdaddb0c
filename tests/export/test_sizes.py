"""What `hexgraft models` says an export will take, held against exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from heads import write_head
from htp_build import calibrated, calibration_of, needs_qnn
from tiny import write_tiny_hf

from hexgraft.export.head import HEAD_WEIGHTS
from hexgraft.export.htp.build import Build, build_graphs
from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions, Variant
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.sizes import Sizes, estimate, estimate_head
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import HeadCheckpoint

SIZES = {"hidden": 512, "ffn": 1536, "layers": 3, "head_dim": 64, "heads": 8, "kv_heads": 4, "vocab": 900}
PEAK = """
import re
from pathlib import Path
from hexgraft.host.cli.main import main
try:
    main()
finally:  # not getrusage: that counts what the parent had at the fork
    print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
"""


@needs_qnn
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "w8a16", "w4a16"])
def test_binaries_have_the_estimated_size(precision: str, tmp_path: Path) -> None:
    """Within 10 %, for a model large enough that its weights are most of the binary."""
    checkpoint = open_checkpoint(write_tiny_hf(tmp_path / "m", **SIZES))
    options = ExportOptions((1, 16), 128)
    export_htp(
        checkpoint,
        tmp_path / "b",
        draft=None,
        options=options,
        htp=HtpOptions(
            find_socs(("SM8650",)),
            make_precision(precision),
            parity_rows=0,
            calibration=calibration_of(precision, tmp_path),
            host_widths=(),
        ),
        report=lambda step: None,
        say=lambda words: None,
    )
    (size,) = {
        open_bundle(tmp_path / "b").manifest.files[graph.htp.binary].size
        for graph in open_bundle(tmp_path / "b").target.graphs
        if graph.htp is not None
    }
    told = next(one for one in estimate(checkpoint.config, 128).estimates if one.precision == precision)
    assert told.weights == pytest.approx(size, rel=0.1)


def test_an_export_takes_the_memory_it_was_said_to(tmp_path: Path) -> None:
    """In a process of its own, with a matrix that outweighs the interpreter."""
    folder = write_tiny_hf(tmp_path / "m", layers=1, hidden=2048, ffn=6144, head_dim=64)
    told = estimate(open_checkpoint(folder).config, 64).exporting
    words = ["export", str(folder), "-o", str(tmp_path / "b"), "--context", "64"]
    done = subprocess.run([sys.executable, "-c", PEAK, *words], capture_output=True, text=True, check=True)
    assert told > 200e6
    assert int(done.stdout.split()[-1]) * 1024 == pytest.approx(told, rel=0.1)


HEADS = {
    "eagle3": {"kind": "eagle3", "rows": 700},
    "eagle": {"kind": "eagle", "layers": 2},  # which borrows the output matrix too
    "own embedding": {"kind": "eagle3", "own_embed": True},
}


def _bundle_of(head: str, folder: Path, cpu: str = "fp32") -> tuple[Path, Sizes]:
    """A bundle of a wide target and a head of it, and what was said of the head beforehand."""
    target = write_tiny_hf(folder / "target", hidden=512, heads=8, head_dim=64, vocab=900, layers=4)
    checkpoint = open_checkpoint(target)
    draft = HeadCheckpoint(write_head(folder / "head", target, ffn=1024, **HEADS[head]), checkpoint)
    options = ExportOptions((16,), 64, precision=cpu)
    export_bundle(checkpoint, folder / "b", draft=draft, options=options, report=lambda step: None)
    return folder / "b", estimate_head(draft, estimate(checkpoint.config, 64))


def _told(sizes: Sizes, precision: str) -> int:
    return next(one.weights for one in sizes.estimates if one.precision == precision)


@needs_qnn
@pytest.mark.parametrize(
    ("head", "precision"),
    [
        ("eagle3", "fp16"),
        ("eagle3", "w8a16"),
        pytest.param("eagle3", "w4a16", marks=pytest.mark.slow),
        pytest.param("eagle", "w8a16", marks=pytest.mark.slow),
        ("eagle", "w4a16"),
        pytest.param("own embedding", "w8a16", marks=pytest.mark.slow),
    ],
)
def test_binaries_of_heads_have_the_estimated_size(head: str, precision: str, tmp_path: Path) -> None:
    path, told = _bundle_of(head, tmp_path)
    bundle, chosen = open_bundle(path), make_precision(precision)
    htp = HtpOptions(find_socs(("SM8650",)), chosen, capacities=(64,))
    build = Build(bundle, "draft", Variant(chosen.for_head(), htp.socs), htp, (16,), lambda words: None)
    ranges = None if precision == "fp16" else calibrated(bundle, "draft")[1]
    build_graphs(build, ranges, lambda count: None)
    graphs = {"draft": build.work_file(16, 64, 0)}
    made = compile_binary(graphs, tmp_path, "draft", htp.socs[0], vtcm_mb=None)
    assert _told(told, precision) == pytest.approx(made.binary.stat().st_size, rel=0.1)


@pytest.mark.parametrize("cpu", ["fp32", "w8", "w4a8"])
@pytest.mark.parametrize("head", HEADS)
def test_heads_have_the_estimated_size_in_a_bundle(head: str, cpu: str, tmp_path: Path) -> None:
    """In fp32 beside any target, with what it borrows where the target is not fp32."""
    path, told = _bundle_of(head, tmp_path, cpu)
    assert _told(told, cpu) == (path / "target" / HEAD_WEIGHTS).stat().st_size
    model = open_bundle(path).model("draft")
    assert told.cache == 2 * 4 * model.layers * model.kv_heads * model.head_dim * 64
    assert (told.parameters == model.parameters) == (cpu == "fp32" or head == "own embedding")
