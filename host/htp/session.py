"""The session that runs a bundle's single-graph context binaries on Qualcomm's HTP emulator (x86-64
Linux)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.htp.qnn import qairt_version, require_qnn, short_release
from hexgraft.host.htp.runtime import HtpRuntime
from hexgraft.host.manifest import GraphEntry, HtpEntry
from hexgraft.models.errors import BundleError, UsageError

PROVIDER = "htp-sim"


class HtpSession(CpuSession):
    """Runs "target" or "draft" of a bundle through the graphs compiled for one chip.

    Everything but the graph runtime is the CPU session's: the cache, the padding to compiled widths, the
    inputs. `soc` and `precision` choose among several builds, None for the first one; `capacities` some of
    the cache sizes there are graphs of, between which the cache grows. The emulator computes what the chip
    computes, thousands of times slower.
    """

    def __init__(
        self,
        bundle: Bundle,
        role: str = "target",
        *,
        widths: Sequence[int] | None = None,
        capacities: Sequence[int] = (),
        soc: str | None = None,
        precision: str | None = None,
    ) -> None:
        require_qnn("--backend htp-sim")
        chains = choose_chains(bundle, role, soc, precision)
        first = _htp(next(iter(chains.values()))[0])
        check_release(bundle, first)
        have, slots = sorted({width for width, _ in chains}), sorted({slots for _, slots in chains})
        missing = sorted(set(widths or ()) - set(have))
        if missing:
            raise UsageError(
                f"{bundle.path} has no graph of {missing[0]} rows for the emulator",
                f"its widths are {', '.join(map(str, have))}",
            )
        used, grown = sorted(widths or have), sorted(capacities or slots)
        files = {
            (width, capacity): [bundle.file(graph.file) for graph in chains[width, capacity]]
            for width in used
            for capacity in grown
        }
        options = {"soc_model": str(first.soc_model)}
        if first.vtcm_mb is not None:
            options["vtcm_mb"] = str(first.vtcm_mb)
        self._remote = HtpRuntime(files, options)
        super().__init__(bundle, role, widths=used, capacities=grown, runtime=self._remote)
        self.spec = replace(self.spec, provider=PROVIDER)
        if first.mask_value is not None:
            self.model = msgspec.structs.replace(self.model, mask_value=first.mask_value)

    def close(self) -> None:
        super().close()
        self._remote.close()

    def _unbind(self) -> None:
        super()._unbind()
        self._remote.forget()


def choose_chains(
    bundle: Bundle,
    role: str,
    soc: str | None = None,
    precision: str | None = None,
    provider: str = PROVIDER,
) -> dict[tuple[int, int], list[GraphEntry]]:
    """The emulator's graphs of one build, or those of another `provider`: (width, capacity) -> its parts in
    order, ascending.

    Raises BundleError if the bundle has none, or not every width at every capacity; UsageError if it has
    others than those asked for.
    """
    place, but = ("the HTP emulator", ", and not with `--host-widths none`")
    if provider != PROVIDER:
        place, but = "the NPU", ""
    graphs = [graph for graph in bundle.model(role).graphs if graph.provider == provider]
    if not graphs:
        raise BundleError(
            f"{bundle.path} has no {role} graphs for {place}", f"export with `--target htp --soc SOC`{but}"
        )
    wanted = [
        graph for graph in graphs if soc in (None, _htp(graph).soc) and precision in (None, graph.precision)
    ]
    if not wanted:
        builds = dict.fromkeys(f"{_htp(graph).soc} {graph.precision}" for graph in graphs)
        raise UsageError(
            f"{bundle.path} has no {role} graphs for {soc or 'any chip'} at {precision or 'any precision'}",
            f"it has: {', '.join(builds)}",
        )
    first = wanted[0]
    chains: dict[tuple[int, int], list[GraphEntry]] = {}
    for graph in wanted:
        same = (graph.precision, _htp(graph).soc_model) == (first.precision, _htp(first).soc_model)
        if same and graph.width is not None and graph.capacity is not None:
            chains.setdefault((graph.width, graph.capacity), []).append(graph)
    for parts in chains.values():
        parts.sort(key=lambda graph: _htp(graph).part)
    for width, capacity in ((width, capacity) for width, _ in chains for _, capacity in chains):
        if (width, capacity) not in chains:
            raise BundleError(
                f"{bundle.path} has no {role} graph of {width} rows over {capacity} slots for {place}",
                "export again: every width needs a graph for each capacity",
            )
    return dict(sorted(chains.items()))


def _htp(graph: GraphEntry) -> HtpEntry:
    if graph.htp is None:
        raise BundleError(f"{graph.file} does not say what chip it was compiled for", "export again")
    return graph.htp


def check_release(bundle: Bundle, htp: HtpEntry) -> None:
    """Raise BundleError unless a binary was built by the QAIRT release that is here."""
    built, here = short_release(htp.qairt), qairt_version()
    if built != here and not here.startswith(f"{built}."):  # "2.51" where no more is known
        raise BundleError(
            f"{bundle.file(htp.binary)} was built by QAIRT {built}, onnxruntime-qnn here is of QAIRT {here}",
            "export again with this one, or install the onnxruntime-qnn that built it",
        )
