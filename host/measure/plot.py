"""A latency profile as a picture for a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hexgraft.host.lab.plot import write_figure
from hexgraft.host.measure.profile import LatencyProfile, ModelTimes, PassTime


def plot_profile(profile: LatencyProfile, path: Path) -> None:
    """Left: milliseconds a pass against its rows, a line a fill, quartiles shaded. Right: against one row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for model, style in ((profile.target, "-"), (profile.draft, "--")):
        if model is not None:
            _draw(model, style, left, right)
    widths = sorted({each.width for each in profile.target.passes})
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(width) for width in widths])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("rows of the pass")
        axes.grid(alpha=0.3)
    left.set(ylabel="ms a pass", title="median and quartiles")
    right.set(ylabel="times one row's pass", title="against one row")
    left.legend(frameon=False)
    figure.suptitle(f"{profile.machine.name}, {profile.backend} ({profile.source.kind})")
    write_figure(figure, path)


def _draw(model: ModelTimes, style: str, left: Any, right: Any) -> None:
    fills = sorted({each.fill for each in model.passes})
    for fill in fills:
        own = sorted((each for each in model.passes if each.fill == fill), key=lambda each: each.width)
        widths = [each.width for each in own]
        medians = [1e3 * each.seconds for each in own]
        line = left.plot(widths, medians, style, marker="o", label=f"{model.name}, {fill} cached")[0]
        low, high = _quartiles(own)
        left.fill_between(widths, low, high, alpha=0.15, color=line.get_color())
        one = medians[0]
        if one:
            right.plot(widths, [value / one for value in medians], style, marker="o", color=line.get_color())


def _quartiles(passes: Sequence[PassTime]) -> tuple[list[float], list[float]]:
    spreads = [each.call or each.graph for each in passes]
    return [1e3 * spread.low for spread in spreads], [1e3 * spread.high for spread in spreads]
