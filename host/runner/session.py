"""The session that drives a runner over the wire protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hexgraft.host.bundle import Bundle
from hexgraft.host.layout import last_widths
from hexgraft.host.runner.connection import Operation, OperationFailed, RunnerConnection, as_error
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.rows import Passed, RunnerRows, Want, convert, floats
from hexgraft.host.runner.wire import BULK_LIMIT, RunnerLost, WireError
from hexgraft.host.session import (
    Bools,
    CacheRows,
    SessionSpec,
    States,
    Visibility,
    checked_move,
    checked_store,
)
from hexgraft.models.errors import DecodeError, UsageError
from hexgraft.models.file_names import is_utf8

Listener = Callable[[dict[str, Any]], None]


class Loaded(msgspec.Struct, frozen=True):
    """What a runner says of a model it loaded. `memory` names where its tensors live."""

    vocab: int
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    capacity: int
    widths: list[int] | None
    max_width: int
    features: int
    logits: int
    provider: str
    memory: str
    threads: int
    affinity: list[int]


class RunnerSession:
    """A model of a bundle, run by a runner at the other end of `connection`.

    `place` is the bundle's folder as the runner sees it. Stores, moves and resets wait for the next message,
    so that a round costs one round trip; the rows a pass is usually asked for come back with it. `soc` and
    `precision` choose among several builds for the NPU, None for the first one. `last_logits` is the spec's:
    the bundle's manifest knows (`host/layout.py`).
    """

    def __init__(
        self,
        connection: RunnerConnection,
        place: str,
        role: str = "target",
        *,
        provider: str = "cpu",
        widths: Sequence[int] | None = None,
        whole: bool = False,
        threads: int = 0,
        options: Mapping[str, str] | None = None,
        soc: str | None = None,
        precision: str | None = None,
        last_logits: Sequence[int] = (),
        owner: LocalRunner | None = None,
    ) -> None:
        self.name = connection.name(role)
        request = self.operation("load", role=role, bundle=place, provider=provider)
        request |= {"whole": whole, "threads": threads}
        if widths:
            request["widths"] = sorted(set(widths))
        if options:
            request["options"] = dict(options)
        request |= {name: value for name, value in (("soc", soc), ("precision", precision)) if value}
        self.connection = connection
        self.role = role
        self._owner = owner
        self._queue: list[Operation] = []
        self._listeners: dict[int, Listener] = {}
        self.wants: dict[tuple[bool, bool], Want] = {}
        self.number = 0
        self.staged = 0
        self._last: RunnerRows | None = None
        self._triangles: dict[int, Bools] = {}
        self._states: States | None = None
        self.loaded = convert(connection.call_one(request), Loaded)
        self.spec = self._spec(provider, last_logits)

    def _spec(self, provider: str, last_logits: Sequence[int]) -> SessionSpec:
        loaded = self.loaded
        return SessionSpec(
            role=self.role,
            vocab=loaded.vocab,
            layers=loaded.layers,
            kv_heads=loaded.kv_heads,
            head_dim=loaded.head_dim,
            hidden=loaded.hidden,
            capacity=loaded.capacity,
            widths=tuple(loaded.widths) if loaded.widths is not None else None,
            max_width=loaded.max_width,
            provider="runner" if provider == "cpu" else f"runner-{provider}",
            features=loaded.features,
            logits=loaded.logits,
            last_logits=tuple(last_logits),
        )

    def feed(self, states: States) -> None:
        """What the rows of the next pass go on from, where the model is a draft head."""
        self._states = states

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> RunnerRows:
        if len(positions) != len(tokens) or visible.count != len(tokens):
            raise DecodeError(
                f"{len(tokens)} tokens, {len(positions)} positions, {visible.count} visibility rows"
            )
        self._learn()
        operation = self.operation(
            "forward", tokens=_ints(tokens), positions=_ints(positions), prefix=int(visible.prefix)
        )
        causal = bool((visible.rows == self._triangle(visible.count)).all())
        if not causal:
            operation["visible"] = _bits(visible.rows | np.eye(visible.count, dtype=np.bool_))
        if visible.slots.size:
            operation["slots"] = visible.slots.tolist()
            operation["seen"] = _bits(visible.seen)
        states, self._states = self._states, None
        if states is not None:
            operation["hidden"] = states.hidden.astype("<f4").tobytes()
            if states.features.shape[1]:
                operation["features"] = states.features.astype("<f4").tobytes()
        kind = (causal, bool(visible.slots.size))
        want = self.wants.get(kind)
        eager = (
            [self.topk_operation(want.k, [len(tokens) - 1] if want.last else None, want.log_sum)]
            if want
            else []
        )
        self.staged = 0
        self.number += 1
        results = self.send([operation, *eager], optional=len(eager))
        passed = convert(results[0], Passed)
        self.staged = passed.count
        self._last = RunnerRows(self, self.number, kind, passed)
        if want and len(results) == 2:
            self._last.keep(want, results[1])
        return self._last

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        source, target = checked_store(rows, slots, staged=self.staged)
        if not source.size:
            return
        if target.max() >= self.spec.capacity:
            raise DecodeError(f"slot {target.max()} is beyond the context of {self.spec.capacity} slots")
        self._queue.append(self.operation("store", rows=source.tolist(), slots=target.tolist()))

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        src, dst = checked_move(source, target, capacity=self.spec.capacity)
        if src.size:
            self._queue.append(self.operation("move", source=src.tolist(), target=dst.tolist()))

    def reset(self) -> None:
        self._queue = [self.operation("reset")]
        self._listeners.clear()
        self.staged = 0

    def later(self, operation: Operation, listener: Listener) -> None:
        """An operation that goes with the next message, after all that waits; `listener` is told its
        result."""
        self._listeners[len(self._queue)] = listener
        self._queue.append(operation)

    def save(self, count: int) -> CacheRows:
        if not 0 <= count <= self.spec.capacity:
            raise DecodeError(f"save of {count} slots, the cache has {self.spec.capacity}")
        spec = self.spec
        keys = np.empty((spec.layers, spec.kv_heads, spec.head_dim, count), np.float32)
        values = np.empty((spec.layers, spec.kv_heads, count, spec.head_dim), np.float32)
        for pieces in self._pieces(count):
            asked = [self.operation("save", layer=i, start=start, count=size) for i, start, size in pieces]
            for (i, start, size), result in zip(pieces, self.send(asked), strict=True):
                shape = (spec.kv_heads, spec.head_dim, size)
                keys[i, :, :, start : start + size] = floats(result["keys"]).reshape(shape)
                shape = (spec.kv_heads, size, spec.head_dim)
                values[i, :, start : start + size] = floats(result["values"]).reshape(shape)
        return CacheRows(keys, values)

    def restore(self, rows: CacheRows) -> None:
        spec = self.spec
        if rows.keys.shape != (spec.layers, spec.kv_heads, spec.head_dim, rows.count):
            raise DecodeError("the saved cache does not belong to this model or is damaged")
        for pieces in self._pieces(rows.count):
            operations = []
            for i, start, size in pieces:
                keys = np.ascontiguousarray(rows.keys[i, :, :, start : start + size], "<f4").tobytes()
                values = np.ascontiguousarray(rows.values[i, :, start : start + size], "<f4").tobytes()
                operations.append(
                    self.operation("restore", layer=i, start=start, count=size, keys=keys, values=values)
                )
            self.send(operations)

    def stats(self) -> dict[str, Any]:
        """The runner's own figures, as PROTOCOL.md lists them."""
        return self.send([{"op": "stats"}])[0]

    def close(self) -> None:
        """Unload the model, and end a runner this session started."""
        if self._owner is not None:
            self._owner.close()
            return
        try:
            self._queue.clear()
            self._listeners.clear()
            self.connection.call_one(self.operation("unload"))
        except RunnerLost:
            pass  # nothing is left to unload

    def operation(self, op: str, **fields: Any) -> Operation:
        return {"op": op, "model": self.name, **fields}

    def topk_operation(self, k: int, rows: Sequence[int] | None, log_sum: bool) -> Operation:
        operation = self.operation("rows", want="topk", k=k, log_sum=log_sum)
        if rows is not None:
            operation["rows"] = list(rows)
        return operation

    def send(self, operations: list[Operation], optional: int = 0) -> list[dict[str, Any]]:
        """Results of `operations`, after all that waits; the last `optional` may fail and be missing."""
        waiting, self._queue = self._queue, []
        listeners, self._listeners = self._listeners, {}
        error: WireError | None = None
        try:
            results = self.connection.call([*waiting, *operations])
        except OperationFailed as failed:
            results, error = failed.results, failed.error
        for place, listener in listeners.items():
            if place < len(results):  # what was done before another operation failed is done
                listener(results[place])
        needed = len(waiting) + len(operations) - optional
        if error is not None and (not optional or error.op < needed):
            raise as_error(error)
        return results[len(waiting) :]

    def _learn(self) -> None:
        """Stop sending rows along with a kind of pass whose last rows nobody asked for."""
        if self._last is not None and self._last.unused():
            self.wants.pop(self._last.kind, None)

    def _triangle(self, count: int) -> Bools:
        if count not in self._triangles:
            self._triangles[count] = np.tri(count, dtype=np.bool_)
        return self._triangles[count]

    def _pieces(self, count: int) -> list[list[tuple[int, int, int]]]:
        """(layer, start, size) of a whole prefix, in messages below the frame limit."""
        slot_bytes = 2 * 4 * self.spec.kv_heads * self.spec.head_dim
        size = max(1, min(count, BULK_LIMIT // 2 // slot_bytes))
        per_message = max(1, BULK_LIMIT // 2 // (size * slot_bytes))
        pieces = [
            (layer, start, min(size, count - start))
            for layer in range(self.spec.layers)
            for start in range(0, count, size)
        ]
        return [pieces[i : i + per_message] for i in range(0, len(pieces), per_message)]


def open_local_session(
    bundle: Bundle,
    role: str = "target",
    *,
    provider: str = "cpu",
    widths: Sequence[int] | None = None,
    whole: bool = False,
    threads: int = 0,
    options: Mapping[str, str] | None = None,
    soc: str | None = None,
    precision: str | None = None,
    binary: Path | None = None,
) -> RunnerSession:
    """Start this machine's runner and load one model in it; closing the session ends the runner. UsageError
    for a bundle whose path the protocol cannot say."""
    place = str(bundle.path.resolve())
    if not is_utf8(place):
        raise UsageError(
            f"the runner takes paths in UTF-8 alone, {place} is not", "rename it, or use --backend cpu"
        )
    runner = LocalRunner(binary)
    try:
        if provider not in runner.connection.hello.providers and runner.connection.hello.error is None:
            raise UsageError(
                f"the runner has no provider {provider!r}",
                f"it has: {', '.join(runner.connection.hello.providers)}",
            )
        return RunnerSession(
            runner.connection,
            place,
            role,
            provider=provider,
            widths=widths,
            whole=whole,
            threads=threads,
            options=options,
            soc=soc,
            precision=precision,
            last_logits=last_widths(bundle.model(role), provider),
            owner=runner,
        )
    except BaseException:
        runner.close()
        raise


def _ints(numbers: Sequence[int]) -> list[int]:
    return [int(number) for number in numbers]


def _bits(rows: Bools) -> bytes:
    """Rows of booleans as bits, little end first, every row in whole bytes."""
    return np.packbits(rows, axis=1, bitorder="little").tobytes()
