"""What `hexgraft models` says an export will take, held against exports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from htp_build import needs_qnn, short_text
from tiny import write_tiny_hf

from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.sizes import estimate
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint

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
            calibration=short_text(tmp_path),
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
