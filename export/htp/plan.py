"""What an NPU export was asked for, checked before anything is done, and how it is laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from hexgraft.export.htp.calibrate import LEAST_SLOTS
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.parts import plan_parts
from hexgraft.export.htp.precision import BITS, FLOAT, Precision, Refusal
from hexgraft.export.htp.soc import Soc, soc_refusals
from hexgraft.models.errors import UsageError

DEFAULT_PART = 384 << 20
"""Bytes of weights a part holds at most. Compiling takes about five times that in memory for each width that
shares the binary."""

MOST_GRAPHS = 16
"""Graphs in one binary. Each takes compile time and memory (1.7 GB for a model of 135 M weights at fp16)."""


@dataclass(frozen=True, slots=True)
class HtpOptions:
    """Everything of `--target htp`.

    `host_widths` are built once more as single graphs, for the emulator on this machine, which cannot load
    shared binaries; for the first chip only. `vtcm_mb` None takes the chip's own size. `parity_rows` are
    prefilled by the parity gate, 0 leaves the gate out. Every width gets a graph for each of `capacities`
    (none: for the whole context alone).
    """

    socs: tuple[Soc, ...]
    precision: Precision
    shared: bool = True
    vtcm_mb: int | None = None
    part_bytes: int = DEFAULT_PART
    host_widths: tuple[int, ...] | None = None
    calibration: Path | None = None
    parity_text: Path | None = None
    parity_rows: int = 128
    force: bool = False
    min_agreement: float | None = None
    threads: int = 0
    block_given: bool = False
    rows_given: bool = False
    capacities: tuple[int, ...] = ()

    @property
    def gated(self) -> bool:
        """Whether the parity gate runs."""
        return self.host_widths != () and self.parity_rows > 0

    def check(self, widths: Sequence[int], head: bool = False) -> None:
        """Refuse what a chip cannot do, in words and all of it at once, before anything is compiled, so that
        a command mended as it says is taken. `head` says that the draft is a head."""
        if not self.socs:
            raise UsageError("--target htp needs a chip", "example: --soc SM8650")
        found = [refusal for soc in self.socs for refusal in self._refusals(soc, widths, head)]
        found += self._refusals_anywhere(widths)
        if found:
            what, instead = (dict.fromkeys(words) for words in zip(*found, strict=True))
            raise UsageError("; ".join(what), "; ".join(instead))

    def _refusals(self, soc: Soc, widths: Sequence[int], head: bool) -> Iterator[Refusal]:
        """What one chip cannot do."""
        several = self.shared and (len(widths) > 1 or len(self.capacities) > 1)
        wishes = self.for_soc(soc).fp16_wishes
        yield from soc_refusals(soc, needs_fp16=wishes, shared=several, vtcm_mb=self.vtcm_mb)
        if head and not soc.fp16:
            yield (
                f"a draft head reads its target in fp16, which {soc.title} has not",
                "leave out --draft, or give a draft model (or name only chips with fp16)",
            )

    def _refusals_anywhere(self, widths: Sequence[int]) -> Iterator[Refusal]:
        """What no chip can do."""
        graphs = len(widths) * len(self.capacities)
        if graphs > MOST_GRAPHS:
            yield (
                f"{len(widths)} widths at {len(self.capacities)} capacities are {graphs} graphs, at most "
                f"{MOST_GRAPHS} go into a binary",
                "name fewer with --widths (1,16,128 serve decoding, trees and prompts) or with --context",
            )
        odd = sorted(set(self.host_widths or ()) - set(widths))
        if odd:
            yield (
                f"--host-widths {odd[0]} is not among the widths {', '.join(map(str, widths))}",
                "leave out --host-widths to build all of them for the emulator",
            )
        if self.part_bytes < 1 << 20:
            yield "--part-size is below 1 MB", "example: --part-size 512"
        if self.min_agreement is not None and not 0 < self.min_agreement <= 1:
            yield f"--min-agreement {self.min_agreement} is not between 0 and 1", "example: 0.98"
        if self.min_agreement is not None and self.precision.name == FLOAT:
            yield "--min-agreement is for quantised precisions", "add --precision w8a16 or w4a16"
        slots = max(self.capacities, default=LEAST_SLOTS)
        if slots < LEAST_SLOTS and self.precision.name != FLOAT:
            yield (
                f"--context {slots} is too short to calibrate {self.precision.name} in",
                f"use --context {LEAST_SLOTS} or more, or --precision fp16",
            )
        if self.calibration is not None and self.precision.name == FLOAT:
            yield (
                "--calibration is for quantised precisions",
                "add --precision w8a16 or w4a16, or leave out --calibration",
            )
        if self.parity_text is not None and not self.gated and self.min_agreement is None:
            yield (
                "--parity is for the parity gate, which runs where there are graphs for the emulator and "
                "--parity-rows is not 0",
                "add --host-widths, or leave out --parity",
            )
        if self.rows_given and self.parity_rows and not self.gated:
            asked = f"--parity-rows {self.parity_rows}"
            yield (
                f"{asked} is for the parity gate, which needs graphs for the emulator",
                f"add --host-widths, such as --host-widths 1,16, or leave out {asked}",
            )

    def for_soc(self, soc: Soc) -> Precision:
        """The precision as a chip gets it: without fp16, everything is integers, one scale a channel unless
        blocks were asked for."""
        if soc.fp16 or self.precision.name == "fp16":
            return self.precision
        block = self.precision.block if self.block_given else 0
        return replace(self.precision, integer=True, block=block)


@dataclass(frozen=True, slots=True)
class Variant:
    """One set of static graphs: those with fp16 between the projections, or the all-integer ones."""

    precision: Precision
    socs: tuple[Soc, ...] = field(default=())

    @property
    def tag(self) -> str:
        return self.precision.name + ("-integer" if self.precision.integer else "")


def capacities_of(options: HtpOptions, context: int) -> tuple[int, ...]:
    """The cache sizes a model of `context` slots is compiled for, ascending; the last one is `context`."""
    return tuple(sorted({min(capacity, context) for capacity in (*options.capacities, context)}))


def variants(options: HtpOptions) -> list[Variant]:
    """The chips grouped by the graphs they can run."""
    groups: dict[Precision, list[Soc]] = {}
    for soc in options.socs:
        groups.setdefault(options.for_soc(soc), []).append(soc)
    return [Variant(precision, tuple(socs)) for precision, socs in groups.items()]


def cuts(network: Network, precision: Precision, limit: int) -> list[str]:
    """Values after which the graph is cut so that no part's stored weights pass `limit` bytes."""
    model = network.model
    layers, head = network.matrix_sizes(lambda weight: BITS[precision.of(weight)])
    embed = model.vocab * model.hidden * (16 if precision.integer else BITS[precision.of("embed")]) // 8
    return plan_parts(max(layers), len(layers), embed, head, limit)


def packaged_text(name: str) -> str:
    """A text that comes with hexgraft: "calibration" or "parity"."""
    return resources.files(__package__).joinpath("texts", f"{name}.txt").read_text(encoding="utf-8")
