"""The session that runs a bundle's symbolic graph on ONNX Runtime's CPU provider, in process.

One runtime session serves every width, so the weights are in memory once. Cache and staging buffers are
bound by address: a pass copies no cache and allocates nothing of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from hexgraft.host.bundle import EXPORT_HINT, Bundle
from hexgraft.host.cache import STEP, Cache
from hexgraft.host.cpu_graph import load_cpu_graph
from hexgraft.host.layout import is_joined
from hexgraft.host.logits import topk
from hexgraft.host.rope import rope_table
from hexgraft.host.session import (
    CacheRows,
    Floats,
    SessionSpec,
    States,
    TopK,
    Visibility,
    check_pass,
    checked_move,
    checked_store,
)
from hexgraft.host.staging import Stage, Staging
from hexgraft.models.errors import BundleError, DecodeError


class CpuSession:
    """Runs "target" or "draft" of a bundle.

    `widths` None runs every width as it comes; a sequence restricts passes to these, padded up to the
    narrowest that fits. `whole` grows the cache as a device does, through the capacities it has graphs of
    (the whole context at once where there is one), instead of in small steps; `capacities` names others.
    Widths and capacities together are exactly the arithmetic of a device that has only those static graphs.
    `share` takes the loaded weights of another session of the same bundle and role; `runtime` is a loaded
    graph with the same inputs and outputs to run in place of the bundle's.
    """

    def __init__(
        self,
        bundle: Bundle,
        role: str = "target",
        *,
        widths: Sequence[int] | None = None,
        whole: bool = False,
        capacities: Sequence[int] = (),
        threads: int = 0,
        share: CpuSession | None = None,
        runtime: ort.InferenceSession | None = None,
    ) -> None:
        model = bundle.model(role)
        if whole and not capacities:
            capacities = model.device_capacities
        if capacities:
            model = msgspec.structs.replace(model, context=capacities[-1])
        self.model, self._capacities = model, tuple(capacities)
        self._widths = tuple(sorted(set(widths))) if widths else None
        max_width = self._widths[-1] if self._widths else max(model.widths)
        self.spec = SessionSpec(
            role=role,
            vocab=model.vocab,
            layers=model.layers,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            hidden=model.hidden,
            capacity=model.context,
            widths=self._widths,
            max_width=max_width,
            provider="cpu",
            features=model.hidden_size,
            logits=model.logit_size,
        )
        loaded = share._runtime if share else runtime
        self._runtime: ort.InferenceSession = loaded or _load(bundle, role, threads)
        self._rope = rope_table(model.rope, model.context)
        self._local_rope = rope_table(model.local_rope, model.context) if model.local_rope else None
        self._first = capacities[0] if capacities else min(STEP, model.context)
        self._cache = self._empty_cache()
        self._staging = Staging(model)
        self._bindings: dict[int, ort.IOBinding] = {}
        self._pass = 0
        self._staged = 0
        self._positions = np.zeros(0, np.int32)
        self._states: States | None = None

    def _empty_cache(self) -> Cache:
        return Cache(self.model, self._first, self._capacities, self.spec.max_width)

    def feed(self, states: States) -> None:
        """What the rows of the next pass go on from, where the model is a draft head."""
        self._states = states

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> CpuRows:
        count = len(tokens)
        width = self._pad(count)
        check_pass(self.spec, tokens, positions, visible)
        if count > 1 and is_joined(self.model) and np.triu(visible.rows, 1).any():
            raise DecodeError(
                "a row sees a later one, which graphs of this cache layout always hide",
                "let parents stand before their children",
            )
        if self._cache.grow(max(visible.prefix, max(visible.slots.tolist(), default=-1) + 1)):
            self._unbind()
        binding = self._bind(width)
        self._fill(width, tokens, positions, visible)
        states, self._states = self._states, None
        self._staging.at(width).take(states, count)
        start = time.perf_counter()
        self._runtime.run_with_iobinding(binding)
        seconds = time.perf_counter() - start
        self._pass += 1
        self._staged = count
        return CpuRows(self, self._pass, count, width, seconds)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        source, target = checked_store(rows, slots, staged=self._staged)
        if not source.size:
            return
        if self._cache.grow(max(slots) + 1, self._staged):
            self._unbind()
        staging = self._staging.at(self._pad(self._staged))
        self._cache.store(staging, self._positions, source, target)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        self._cache.move(*checked_move(source, target, capacity=self._cache.capacity))

    def reset(self) -> None:
        """Back to the first cache size and to zeros, so that a second text is computed exactly as the first
        one was: what an overflow left in a slot would reach every later pass, masked or not."""
        if self._cache.capacity != self._first:
            self._cache = self._empty_cache()
            self._unbind()
        else:
            self._cache.clear()
        self._staged = 0

    def save(self, count: int) -> CacheRows:
        if not 0 <= count <= self._cache.capacity:
            raise DecodeError(f"save of {count} slots, the cache has {self._cache.capacity}")
        return self._cache.save(count)

    def restore(self, rows: CacheRows) -> None:
        if self._cache.grow(rows.count):
            self._unbind()
        self._cache.restore(rows)

    def close(self) -> None:
        self._bindings.clear()

    def _unbind(self) -> None:
        """Buffers have moved: no binding to them is good any more."""
        self._bindings.clear()

    def _pad(self, count: int) -> int:
        if count < 1 or count > self.spec.max_width:
            raise DecodeError(f"a pass of {count} rows, this session runs 1 to {self.spec.max_width}")
        if self._widths is None:
            return count
        return next(width for width in self._widths if width >= count)

    def _fill(self, width: int, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> None:
        """Write the inputs of a pass. Pad rows hold token 0 at the first row's position and see only
        themselves."""
        count, capacity, stage = len(tokens), self._cache.capacity, self._staging.at(width)
        stage.ids[0, :count] = tokens
        stage.ids[0, count:] = 0
        places = np.empty(width, np.intp)
        places[:count] = positions
        places[count:] = positions[0]
        stage.cos[0, 0], stage.sin[0, 0] = self._rope.at(places)
        mask = self._staging.mask(width, capacity)[0, 0]
        hide = self.model.mask_value
        mask.fill(hide)
        mask[:count, : visible.prefix] = 0
        if visible.slots.size:
            mask[:count, visible.slots] = np.where(visible.seen, np.float32(0), np.float32(hide))
        mask.reshape(-1)[capacity :: capacity + width + 1] = 0  # every row sees itself
        if count > 1:
            mask[:count, capacity : capacity + count][visible.rows] = 0
        self._fill_local(width, places, mask)

    def _fill_local(self, width: int, places: NDArray[np.intp], mask: Floats) -> None:
        """The inputs of layers with a window: a row sees there what it sees elsewhere and is near enough."""
        self._positions, stage = places.astype(np.int32), self._staging.at(width)
        if self._local_rope is not None and stage.cos_local is not None and stage.sin_local is not None:
            stage.cos_local[0, 0], stage.sin_local[0, 0] = self._local_rope.at(places)
        if self.model.window is None:
            return
        columns = np.concatenate((self._cache.positions, self._positions))
        far = self._positions[:, None] - columns >= self.model.window
        local = self._staging.local_mask(width, self._cache.capacity)[0, 0]
        np.copyto(local, mask)
        local[far] = self.model.mask_value

    def _bind(self, width: int) -> ort.IOBinding:
        """The runtime's binding for one width, made once per width and cache size."""
        if self._staging.grow(width):
            self._unbind()
        binding = self._bindings.get(width)
        if binding is not None:
            return binding
        binding = self._runtime.io_binding()
        stage, cache = self._staging.at(width), self._cache
        inputs: dict[str, NDArray[np.float32] | NDArray[np.int32]] = {
            "input_ids": stage.ids,
            "attention_mask": self._staging.mask(width, cache.capacity),
            "position_ids_cos": stage.cos,
            "position_ids_sin": stage.sin,
        }
        if self.model.window is not None:
            inputs["attention_mask_local"] = self._staging.local_mask(width, cache.capacity)
        if stage.cos_local is not None and stage.sin_local is not None:
            inputs |= {"position_ids_cos_local": stage.cos_local, "position_ids_sin_local": stage.sin_local}
        if stage.hidden_in is not None:
            inputs["hidden_in"] = stage.hidden_in
        if stage.features is not None and stage.features.size:
            inputs["features"] = stage.features
        past, rows = cache.tensors(stage)
        inputs |= past
        outputs: dict[str, Floats] = {"logits": stage.logits, **rows}
        if stage.hidden is not None:
            outputs["hidden"] = stage.hidden
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._bindings[width] = binding
        return binding


class CpuRows:
    """The rows of one pass, read straight from the session's staging buffers."""

    def __init__(self, session: CpuSession, number: int, count: int, width: int, seconds: float) -> None:
        self._session = session
        self._number = number
        self.count = count
        self.width = width
        self.seconds = seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        chosen = self._stage().logits[0, : self.count]
        if rows is not None:
            # One row, as greedy decoding asks for, is looked at where it lies: copying it takes longer.
            chosen = chosen[rows[0], None] if len(rows) == 1 else chosen[list(rows)]
        return topk(chosen, k, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        row_logits: Floats = self._stage().logits[0, row].copy()
        return row_logits

    def hidden(self, row: int) -> Floats:
        state: Floats = self.hiddens([row])[0]
        return state

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        stage = self._stage()
        if stage.hidden is None:
            raise DecodeError("this bundle's graph has no hidden output", "export it with a draft head")
        states = stage.hidden[0, : self.count]
        return states.copy() if rows is None else states[np.asarray(rows, np.intp)]

    def _stage(self) -> Stage:
        if self._session._pass != self._number:
            raise DecodeError("these rows are gone: the session has run another pass since")
        return self._session._staging.at(self.width)


def _load(bundle: Bundle, role: str, threads: int) -> ort.InferenceSession:
    file = bundle.file(bundle.graph(role, "cpu").file)
    session = load_cpu_graph(file, threads, EXPORT_HINT)
    model = bundle.model(role)
    found = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
    layers = sum(name.startswith("past_key_") and name.endswith("_in") for name in found)
    # The second of the four dimensions in the joined layout is the first of the others.
    first = 1 if is_joined(model) else 0
    sizes = [layers, *found.get("past_key_0_in", [])[first::2], *found.get("logits", [])[2:]]
    hidden = found["hidden"][-1] if "hidden" in found else None
    wanted = [model.layers, model.kv_heads, model.head_dim, model.logit_size]
    taken = {name: found[name][-1] for name in ("hidden_in", "features") if name in found}
    takes = {} if model.head is None else {"hidden_in": model.hidden, "features": model.head.feature_size}
    local = {"attention_mask_local"} if model.window is not None else set()
    if model.local_rope is not None:
        local |= {"position_ids_cos_local", "position_ids_sin_local"}
    if (
        sizes != wanted
        or hidden != (model.hidden_size or None)
        or taken != {name: size for name, size in takes.items() if size}
        or local != {name for name in found if name.endswith("_local")}
    ):
        raise BundleError(f"{file} is not the graph that the bundle's manifest describes", EXPORT_HINT)
    return session
