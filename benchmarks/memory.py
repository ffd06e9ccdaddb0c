"""What a command and all its children hold in memory, by the stages of an export."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import Figure


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: `anonymous` ones, and `mapped` pages of files, which the system takes back where it
    needs room; `total` is the largest sum of both at a time."""

    anonymous: int = 0
    mapped: int = 0
    total: int = 0

    def peak(self, other: Memory) -> Memory:
        """The larger of each."""
        return Memory(
            max(self.anonymous, other.anonymous),
            max(self.mapped, other.mapped),
            max(self.total, other.total),
        )


def watch(process: subprocess.Popen[bytes], output: Path) -> dict[str, Memory]:
    """Peaks by stage of an NPU export to `output` until it ends, in the order of the stages."""
    peaks = [Memory()]
    names: list[str] = []
    state = output.parent / f".{output.name}.unfinished" / "stages.json"
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError):  # not there yet, or already taken away
            names = list(json.loads(state.read_text()))
        peaks += [Memory()] * (len(names) + 1 - len(peaks))
        peaks[len(names)] = peaks[len(names)].peak(tree_memory(process.pid))
        time.sleep(0.05)
    return dict(zip([*names, "the rest"], peaks, strict=True))


def stage_figures(title: str, stages: dict[str, Memory]) -> Iterator[Figure]:
    """Three figures a stage."""
    for stage, peak in stages.items():
        if peak.total:
            yield Figure(f"{title}, {stage}: memory", peak.total / 1e9, "GB")
            yield Figure(f"{title}, {stage}: anonymous", peak.anonymous / 1e9, "GB")
            yield Figure(f"{title}, {stage}: mapped files", peak.mapped / 1e9, "GB")


def tree_memory(root: int) -> Memory:
    """What a process and all its descendants hold now."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            pages, files = (int(field) for field in (folder / "statm").read_text().split()[1:3])
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
        parents[int(folder.name)] = int(stat[1])
        found[int(folder.name)] = pages - files, files
    anonymous = mapped = 0
    for process, (ours, files) in found.items():
        ancestor = process
        while ancestor not in (root, 0, 1):
            ancestor = parents.get(ancestor, 0)
        if ancestor == root:
            anonymous += ours
            mapped += files
    page = os.sysconf("SC_PAGE_SIZE")
    return Memory(anonymous * page, mapped * page, (anonymous + mapped) * page)
