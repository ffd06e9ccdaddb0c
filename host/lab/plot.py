"""The lab's table as a picture for a report."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from hexgraft.host.atomic_file import check_place, check_replaced, write_whole
from hexgraft.host.lab.comparison import LabRow
from hexgraft.host.lab.prompts import CATEGORIES
from hexgraft.models.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STARTS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF-"}
"""What pictures begin with, by the ends of their names."""


def check_plot(path: Path) -> None:
    """Raise HexgraftError now, not after minutes of measuring, if the picture cannot be written later: it may
    replace an older one, and nothing else."""
    suffix = path.suffix.lower()
    if suffix not in STARTS:
        raise UsageError(f"--plot {path} has no picture format", f"end its name in {', '.join(STARTS)}")
    check_place(path, "--plot", f"picture{suffix}")
    check_replaced(path, STARTS[suffix], f"{suffix[1:].upper()} picture", "--plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib", "pip install 'hexgraft[plot]'")


def write_figure(figure: Figure, path: Path) -> None:
    """Draw a figure at a name that `check_plot` took, over an older picture."""
    drawn = BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=150)
    write_whole(path, drawn.getvalue(), replace=True)


def plot_lab(rows: Sequence[LabRow], title: str, path: Path) -> None:
    """Left: tokens a round against tree size, a line a drafter. Right: the largest size by category."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    drafters = list(dict.fromkeys(row.drafter for row in rows))
    sizes = sorted({row.tree_size for row in rows})
    for name in drafters:
        own = sorted(
            (r for r in rows if r.drafter == name and r.category == "all"), key=lambda r: r.tree_size
        )
        left.plot([r.tree_size for r in own], [r.tokens_per_round for r in own], marker="o", label=name)
    left.set_xscale("log", base=2)
    left.set_xticks(sizes, [str(size) for size in sizes])
    left.minorticks_off()
    left.set_ylim(bottom=1)
    left.set(xlabel="nodes of the tree", ylabel="tokens a target pass", title="all prompts")
    left.grid(alpha=0.3)
    left.legend(frameon=False)

    found = [c for c in (*CATEGORIES, "file") if any(r.category == c for r in rows)]
    bar = 0.8 / len(drafters)
    for number, name in enumerate(drafters):
        own_by = {r.category: r for r in rows if r.drafter == name and r.tree_size == sizes[-1]}
        places = [place - 0.4 + bar * (number + 0.5) for place in range(len(found))]
        right.bar(places, [own_by[c].tokens_per_round for c in found], width=bar, label=name)
    right.set_xticks(range(len(found)), found)
    right.set_ylim(bottom=0)
    right.axhline(1, color="black", linewidth=0.8, linestyle=":")
    right.set(title=f"by category, {sizes[-1]} nodes", ylabel="tokens a target pass")
    figure.suptitle(title)
    write_figure(figure, path)
