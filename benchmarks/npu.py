"""SmolLM2 quantised for the NPU against fp32, over 512 rows of held-out text, on the CPU: the same QDQ graphs
that are compiled, computed exactly. The parity gate of `hexgraft export` gives the emulator's figures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_checkpoint
from hexgraft.export.htp.calibrate import calibrate
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.plan import packaged_text
from hexgraft.export.htp.precision import Precision, make_precision
from hexgraft.export.htp.search import Judge
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.text import TextCodec
from hexgraft.models.checkpoint import open_checkpoint

KEPT_W8 = "layers.11.down,layers.28.down,layers.29.gate_up,layers.29.down"
KEPT_W4 = "layers.11.down,layers.29.down,layers.29.gate_up," + ",".join(
    f"layers.{i}.qkv" for i in (1, 2, 3, 5, 7, 8, 12, 13, 14, 15, 16, 19)
)
ROWS = 512
BUILDS = {
    "w8a16": (make_precision("w8a16"), "", ""),
    "w8a16, 4 layers and the head at fp16": (
        make_precision("w8a16", head="fp16", keep=KEPT_W8),
        ">= 0.97",
        "<= 1.03",
    ),
    "w8a16 in blocks, 3 layers at fp16": (
        make_precision("w8a16", block=32, keep="layers.11.down,layers.29.gate_up,layers.29.down"),
        "",
        "<= 1.03",
    ),
    "w4a16": (make_precision("w4a16"), "", ""),
    "w4a16, 15 layers at w8": (make_precision("w4a16", keep=KEPT_W4 + ":w8"), "", "<= 1.15"),
}


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = open_checkpoint(smollm2_checkpoint())
        options = ExportOptions((1, 128), 640)
        export_bundle(checkpoint, folder / "b", options=options, report=lambda step: None)
        bundle = open_bundle(folder / "b")
        codec = TextCodec(bundle)
        ranges = calibrate(bundle, "target", [codec.encode_raw(packaged_text("calibration"))[:1024]])
        network = Network(bundle, "target")
        judge = Judge(network, bundle, ranges, codec.encode_raw(packaged_text("parity")))
        for title, (precision, agreement, perplexity) in BUILDS.items():
            found = judge.figures(precision, ROWS)
            reference, other = found.perplexity
            yield Figure(f"{title}: top-1 agreement", found.agreement, "", agreement)
            yield Figure(f"{title}: KL", found.kl, "nats")
            yield Figure(f"{title}: perplexity over fp32's", other / reference, "x", perplexity)
            yield Figure(f"{title}: kept higher", kept(judge, precision), "of weights", "<= 0.1")
        judge.close()


def kept(judge: Judge, precision: Precision) -> float:
    """Share of the projections' weights above the precision's own format, the head left out."""
    sizes, own = judge.sizes, precision.name.removesuffix("a16")
    higher = sum(size for name, size in sizes.items() if precision.of(name) != own)
    return higher / sum(sizes.values())
