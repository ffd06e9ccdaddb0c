"""The chips graphs are compiled for, as data (`socs.toml`), and the gate that refuses what one cannot do."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from hexgraft.export.htp.precision import Refusal
from hexgraft.models.errors import UsageError

SHARING_ARCH = 73
"""The first Hexagon generation whose binaries may hold several graphs over one set of weights."""


@dataclass(frozen=True, slots=True)
class Soc:
    """One chip. `vtcm_mb` is None where no source states it; the compiler then takes the chip's own size."""

    soc_model: int
    chips: tuple[str, ...]
    market: tuple[str, ...]
    arch: int
    fp16: bool
    sharing: bool
    ro_soc: tuple[str, ...]
    board: tuple[str, ...]
    source: str
    vtcm_mb: int | None = None

    @property
    def name(self) -> str:
        return self.chips[0]

    @property
    def title(self) -> str:
        """The name and what it is sold as: `SM8650 (Snapdragon 8 Gen 3, V75)`."""
        return f"{self.name} ({', '.join((*self.market[:1], f'V{self.arch}'))})"


@cache
def soc_table() -> tuple[Soc, ...]:
    """Every chip, in the order of the file."""
    text = resources.files(__package__).joinpath("socs.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["soc"]
    lists = ("chips", "market", "ro_soc", "board")
    return tuple(Soc(**{**row, **{key: tuple(row.get(key, ())) for key in lists}}) for row in rows)


def find_soc(name: str) -> Soc:
    """The chip of a name: a part (`SM8650`), a market name (`Snapdragon 8 Elite`), Android's
    ro.soc.model or ro.board.platform, or the soc_model number. Case and spaces do not matter.

    Raises UsageError with the closest names.
    """
    wanted = _key(name)
    for soc in soc_table():
        if wanted in {_key(known) for known in _names(soc)}:
            return soc
    shown = {_key(known): known for soc in soc_table() for known in (*soc.chips, *soc.market)}
    close = [shown[key] for key in difflib.get_close_matches(wanted, shown, n=3, cutoff=0.5)]
    hint = f"closest: {', '.join(close)}" if close else f"one of: {', '.join(s.name for s in soc_table())}"
    raise UsageError(f"unknown SoC {name!r}", hint)


def find_socs(names: Sequence[str]) -> tuple[Soc, ...]:
    """The distinct chips of several names, in the order given."""
    return tuple(dict.fromkeys(find_soc(name) for name in names))


def soc_refusals(
    soc: Soc, *, needs_fp16: Sequence[Refusal], shared: bool, vtcm_mb: int | None
) -> list[Refusal]:
    """Everything that `soc` cannot do, known before anything is compiled.

    `needs_fp16` are the wishes that need fp16 arithmetic ("--precision fp16") and what to type instead;
    `shared` is whether several graphs were asked to share one binary.
    """
    found: list[Refusal] = []
    if needs_fp16 and not soc.fp16:
        wishes = " and ".join(wish for wish, _ in needs_fp16)
        needs = "needs" if len(needs_fp16) == 1 else "need"
        found.append(
            (
                f"{wishes} {needs} fp16 arithmetic, which the NPU of {soc.title} does not have",
                " and ".join(dict.fromkeys(instead for _, instead in needs_fp16)),
            )
        )
    if shared and not soc.sharing:
        found.append(
            (
                f"{soc.title} cannot share weights between graphs, that begins with V{SHARING_ARCH}",
                "use --unshared, which makes one binary a width",
            )
        )
    if vtcm_mb is not None and vtcm_mb < 1:
        found.append((f"--vtcm {vtcm_mb} is not a size in MB", "leave out --vtcm for the chip's own size"))
    if vtcm_mb is not None and soc.vtcm_mb is not None and vtcm_mb > soc.vtcm_mb:
        found.append(
            (
                f"--vtcm {vtcm_mb} is more than the {soc.vtcm_mb} MB of VTCM that {soc.title} has",
                f"use --vtcm {soc.vtcm_mb} or less, or leave it out",
            )
        )
    return found


def _names(soc: Soc) -> tuple[str, ...]:
    return (*soc.chips, *soc.market, *soc.ro_soc, *soc.board, str(soc.soc_model))


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", name.lower())
