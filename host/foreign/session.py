"""The session of graphs in the vendor's layout: static graphs, CL columns whatever the width."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hexgraft.host.bundle import Bundle
from hexgraft.host.foreign.cache import PastCache
from hexgraft.host.foreign.chains import CpuChains
from hexgraft.host.foreign.frame import Frame
from hexgraft.host.htp.qnn import require_qnn
from hexgraft.host.htp.runtime import HtpRuntime
from hexgraft.host.htp.session import PROVIDER as EMULATOR
from hexgraft.host.htp.session import check_release
from hexgraft.host.layout import vendor_of
from hexgraft.host.logits import topk
from hexgraft.host.manifest import GraphEntry
from hexgraft.host.rope import rope_table
from hexgraft.host.session import (
    CacheRows,
    Floats,
    SessionSpec,
    TopK,
    Visibility,
    check_pass,
    checked_move,
    checked_store,
)
from hexgraft.models.errors import BundleError, DecodeError, UsageError

Chains = Mapping[int, Sequence[GraphEntry]]


class VendorSession:
    """Runs a model of a bundle through static graphs (`chains`: width -> parts in order) that `runtime` has.

    Its capacity is the past of the widest graph in use: slots beyond are not addressable in every width.
    """

    def __init__(self, bundle: Bundle, role: str, chains: Chains, runtime: Any, provider: str) -> None:
        self.model = model = bundle.model(role)
        self._runtime = runtime
        columns = _columns(chains)
        capacity = columns - max(chains)
        rope = rope_table(model.rope, capacity)
        self._frames = {width: Frame(model, chain, rope) for width, chain in sorted(chains.items())}
        self._order = sorted(self._frames, key=lambda width: (self._frames[width].last, width))
        self.spec = SessionSpec(
            role=role,
            vocab=model.vocab,
            layers=model.layers,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            hidden=model.hidden,
            capacity=capacity,
            widths=tuple(self._frames),
            max_width=max(self._frames),
            provider=provider,
            features=0,
            logits=model.vocab,
            last_logits=tuple(width for width, frame in self._frames.items() if frame.last),
        )
        self._cache = PastCache(model, columns, capacity, min(chains))
        self._bindings: dict[int, Any] = {}
        self._pass, self._staged, self._width = 0, 0, 0

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> VendorRows:
        check_pass(self.spec, tokens, positions, visible)
        self._cache.check(max(visible.prefix, int(visible.slots.max(initial=-1)) + 1) - 1)
        count = len(tokens)
        frame = self._frames[self._pad(count)]
        binding = self._bind(frame)
        frame.fill(tokens, positions, visible)
        start = time.perf_counter()
        self._runtime.run_with_iobinding(binding)
        seconds = time.perf_counter() - start
        self._pass += 1
        self._staged, self._width = count, frame.width
        return VendorRows(self, frame, self._pass, count, seconds)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        source, target = checked_store(rows, slots, staged=self._staged)
        if source.size:
            frame = self._frames[self._width]
            self._cache.store(frame.staged, source + frame.first(self._staged), target)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        self._cache.move(*checked_move(source, target, capacity=self.spec.capacity))

    def reset(self) -> None:
        self._cache.clear()
        self._staged = 0

    def save(self, count: int) -> CacheRows:
        if not 0 <= count <= self.spec.capacity:
            raise DecodeError(f"save of {count} slots, the cache has {self.spec.capacity}")
        return self._cache.save(count)

    def restore(self, rows: CacheRows) -> None:
        self._cache.restore(rows)

    def close(self) -> None:
        self._bindings.clear()
        self._runtime.close()

    def _pad(self, count: int) -> int:
        """The narrowest width that fits; those that give one row's logits only where no other does."""
        if count < 1 or count > self.spec.max_width:
            raise DecodeError(f"a pass of {count} rows, this session runs 1 to {self.spec.max_width}")
        return next(width for width in self._order if width >= count)

    def _bind(self, frame: Frame) -> Any:
        """The runtime's binding for one width, made once: no buffer ever moves."""
        if frame.width not in self._bindings:
            binding = self._runtime.io_binding()
            inputs, outputs = frame.tensors(self._cache.at(frame.width))
            for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
                for name, array in tensors.items():
                    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            self._bindings[frame.width] = binding
        return self._bindings[frame.width]


class VendorRows:
    """The rows of one pass, read from the frame of its width and made real when asked for."""

    def __init__(self, session: VendorSession, frame: Frame, number: int, count: int, seconds: float) -> None:
        self._session, self._frame, self._number = session, frame, number
        self.count, self.width, self.seconds = count, frame.width, seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        chosen = range(self.count) if rows is None else [range(self.count)[row] for row in rows]
        return topk(self._logits(chosen), k, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        only: Floats = self._logits([row])[0]
        return only

    def hidden(self, row: int) -> Floats:
        return self.hiddens([row])

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        raise DecodeError("this bundle's graph has no hidden output", "export it with a draft head")

    def _logits(self, rows: Sequence[int]) -> Floats:
        if self._session._pass != self._number:
            raise DecodeError("these rows are gone: the session has run another pass since")
        if self._frame.last and any(row != self.count - 1 for row in rows):
            raise DecodeError(
                f"the graph of {self.width} rows gives the logits of its last row alone",
                f"use --tree-size {self._session.spec.tree_width} or less",
            )
        return self._frame.logits(rows)


def open_vendor_cpu(
    bundle: Bundle, role: str, *, widths: Sequence[int] | None = None, threads: int = 0
) -> VendorSession:
    """A session of the bundle's static ONNX graphs on the CPU; `widths` restricts it, and adds slots."""
    chains = vendor_chains(bundle, role, "cpu", widths)
    return VendorSession(bundle, role, chains, CpuChains(_files(bundle, chains), threads), "cpu")


def open_vendor_emulator(bundle: Bundle, role: str, *, widths: Sequence[int] | None = None) -> VendorSession:
    """A session of the bundle's context binaries on Qualcomm's emulator, which loads single graphs only."""
    require_qnn("--backend htp-sim")
    chains = vendor_chains(bundle, role, EMULATOR, widths)
    htp = next(iter(chains.values()))[0].htp
    options: dict[str, str] = {}
    if htp is not None:
        check_release(bundle, htp)
        options["soc_model"] = str(htp.soc_model)
    files = {
        (width, chains[width][0].capacity or 0): paths for width, paths in _files(bundle, chains).items()
    }
    return VendorSession(bundle, role, chains, HtpRuntime(files, options), EMULATOR)


def vendor_chains(bundle: Bundle, role: str, provider: str, widths: Sequence[int] | None) -> Chains:
    """The graphs of a provider by width, parts in order; BundleError if there are none, UsageError if not
    for every width asked for."""
    chains: dict[int, list[GraphEntry]] = {}
    for graph in bundle.model(role).graphs:
        if graph.provider == provider and graph.width is not None:
            chains.setdefault(graph.width, []).append(graph)
    if not chains:
        have = ", ".join(dict.fromkeys(graph.provider for graph in bundle.model(role).graphs))
        raise BundleError(
            f"{bundle.path} has no {role} graphs for {provider}, only for {have}",
            "import a folder of the vendor's that holds such graphs",
        )
    missing = sorted(set(widths or ()) - set(chains))
    if missing:
        have = ", ".join(map(str, sorted(chains)))
        raise UsageError(f"{bundle.path} has no graph of {missing[0]} rows", f"its widths are {have}")
    used = sorted(set(widths or chains))
    return {width: sorted(chains[width], key=lambda graph: vendor_of(graph).part) for width in used}


def _columns(chains: Chains) -> int:
    """CL, the same for every width (`host/layout.py` sees to that)."""
    width, chain = next(iter(chains.items()))
    return width + (chain[0].capacity or 0)


def _files(bundle: Bundle, chains: Chains) -> dict[int, list[Any]]:
    return {width: [bundle.file(graph.file) for graph in chain] for width, chain in chains.items()}
