"""The stages of an NPU export up to the quantised graphs, nothing compiled: `python -m benchmarks.npu_graphs
CHECKPOINT OUTPUT PRECISION`, a process of its own so that others can measure it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from hexgraft.export.htp.build import Build, Job
from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.writer import ExportOptions
from hexgraft.models.checkpoint import open_checkpoint


class Nothing:
    """A compiler that is never asked, since it is dry."""

    dry = True
    identity = "nothing"

    def prepare(self, build: Build, jobs: Sequence[Job]) -> None:
        pass

    def compile(self, build: Build, job: Job) -> dict[str, str]:
        raise NotImplementedError

    def keep(self, build: Build, job: Job) -> None:
        raise NotImplementedError

    def write_records(self, bundle: Path) -> list[str]:
        raise NotImplementedError


def main(checkpoint: str, output: str, precision: str) -> None:
    htp = HtpOptions(find_socs(("SM8650",)), make_precision(precision), host_widths=(), parity_rows=0)
    export_htp(
        open_checkpoint(Path(checkpoint)),
        Path(output),
        draft=None,
        options=ExportOptions((1, 16, 128), 512),
        htp=htp,
        report=lambda step: None,
        say=lambda words: None,
        compiler=lambda folder: Nothing(),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
