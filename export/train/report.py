"""What a training tells beside its draft: sizes, and its curves as a picture where matplotlib is."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PICTURE = "report.png"
WEIGHTS = "model.safetensors"


def draft_size(folder: Path, rows: int, vocab: int) -> dict[str, int]:
    """What a draft takes: `bytes` of its weights' file, and the output `rows` it has of `vocab` tokens."""
    return {"bytes": (folder / WEIGHTS).stat().st_size, "rows": rows, "vocab": vocab}


def can_draw() -> bool:
    """Whether matplotlib, which draws the picture, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_report(report: dict[str, Any], folder: Path) -> None:
    """Draw a training's report as `PICTURE` into its draft's folder: the loss by step, what the draft was
    worth on held-out texts whenever it was measured, and how often the target's token was its best, second
    best, ... at each depth."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    losses = report["losses"]
    left.plot(range(1, len(losses) + 1), losses, linewidth=0.5, alpha=0.35)
    left.plot(range(1, len(losses) + 1), smoothed(losses))
    left.set(xlabel="step", ylabel="loss, summed over unrolled steps", title="training")

    middle.plot(report["measured_after_steps"], report["chain_when_measured"], marker="o")
    middle.set(xlabel="step", ylabel="tokens a round, chains of 4", title="held-out prompts")
    middle.set_xlim(0, 1.05 * len(losses))

    for depth, rates in enumerate(report["acceptance_by_depth_and_rank"], 1):
        right.plot(range(1, len(rates) + 1), rates, marker="o", label=f"depth {depth}")
    right.set(xlabel="rank of the draft's proposal", ylabel="is the target's token", title="acceptance")
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    figure.suptitle(_title(report, folder))
    figure.savefig(folder / PICTURE, dpi=150)


def smoothed(losses: Sequence[float]) -> list[float]:
    """The mean of every loss and those before it, of a fiftieth of all."""
    span = max(1, len(losses) // 50)
    return [float(np.mean(losses[max(0, end - span) : end])) for end in range(1, len(losses) + 1)]


def _title(report: dict[str, Any], folder: Path) -> str:
    size, data = report["size"], report["data"]
    return (
        f"{folder.name}: {report['parameters'] / 1e6:.1f} million weights, {size['bytes'] / 1e6:.1f} MB, "
        f"{size['rows']} of {size['vocab']} tokens, {data['held_out_coverage']:.1%} of held-out text"
    )
