"""Requests to a runner and its replies, over any pair of byte streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hexgraft.host.logits import NotFinite
from hexgraft.host.runner.wire import (
    PROTOCOL,
    EndOfStream,
    Hello,
    ProtocolMismatch,
    Reader,
    Reply,
    RunnerError,
    RunnerLost,
    WireError,
    Writer,
    pack_frame,
    read_frame,
)
from hexgraft.models.errors import BundleError, DecodeError, HexgraftError

Operation = dict[str, Any]
LOST_HINT = "run again; if it repeats, try a smaller context or --backend cpu"
_BUNDLE_CODES = ("bad_bundle", "no_bundle", "no_model", "no_graph", "bad_graph", "load_failed")
_DECODE_CODES = ("bad_field", "out_of_range", "no_pass", "no_hidden", "too_large")


class OperationFailed(Exception):
    """An operation list that stopped: `results` of the operations before, and what the runner said."""

    def __init__(self, results: list[dict[str, Any]], error: WireError) -> None:
        super().__init__(error.message)
        self.results = results
        self.error = error


def as_error(error: WireError) -> HexgraftError:
    """The exception a session in process would raise for the same mistake."""
    hint = error.hint or None
    if error.code == "not_finite":
        return NotFinite()
    if error.code in _BUNDLE_CODES:
        return BundleError(error.message, hint)
    if error.code in _DECODE_CODES:
        return DecodeError(error.message, hint)
    return RunnerError(f"the runner: {error.message}", hint, error.code)


class RunnerConnection:
    """Requests and replies over a byte stream. `explain` tells in words why a stream ended, if anybody knows.

    Several sessions may share one connection; it is not for several threads.
    """

    def __init__(self, reader: Reader, writer: Writer, explain: Callable[[], str] | None = None) -> None:
        self._reader = reader
        self._writer = writer
        self._explain = explain or (lambda: "")
        self._reply = msgspec.msgpack.Decoder(Reply)
        self._number = 0
        self._broken = False
        self._names: set[str] = set()
        self.hello = self._greet()

    def _greet(self) -> Hello:
        raw = self._receive()
        try:
            hello = msgspec.msgpack.decode(raw, type=Hello)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._lost(f"the runner did not greet as one: {error}") from error
        if hello.hello != "hexgraft" or hello.protocol != PROTOCOL:
            self._broken = True
            raise ProtocolMismatch(
                f"the runner (hexgraft {hello.version or '?'}) speaks protocol {hello.protocol}, "
                f"this hexgraft protocol {PROTOCOL}",
                "build it again with `hexgraft device build`",
            )
        return hello

    @property
    def broken(self) -> bool:
        """Whether the conversation is over: nothing can be asked any more."""
        return self._broken

    def name(self, role: str) -> str:
        """A name for another model in this runner, not used on this connection before."""
        name, number = role, 1
        while name in self._names:
            number += 1
            name = f"{role}-{number}"
        self._names.add(name)
        return name

    def call(self, operations: Sequence[Operation]) -> list[dict[str, Any]]:
        """Carry out operations in order, in one round trip. Raises OperationFailed where one failed."""
        if self._broken:
            raise RunnerLost("the connection to the runner is gone", "start again")
        self._number = self._number % 0xFFFFFFFF + 1
        frame = pack_frame({"id": self._number, "ops": list(operations)})
        # Whatever interrupts us from here on leaves half a conversation behind.
        self._broken = True
        try:
            self._writer.write(frame)
            self._writer.flush()
        except (OSError, ValueError) as error:
            raise self._lost("the runner is gone") from error
        reply = self._decode(self._receive())
        self._broken = False
        if reply.error is not None:
            raise OperationFailed(reply.results, reply.error)
        if len(reply.results) != len(operations):
            raise self._lost(f"the runner answered {len(reply.results)} of {len(operations)} operations")
        return reply.results

    def call_one(self, operation: Operation) -> dict[str, Any]:
        """One operation; raises what a session in process would."""
        try:
            return self.call([operation])[0]
        except OperationFailed as failed:
            raise as_error(failed.error) from None

    def close(self) -> None:
        """Say bye if the other end still listens. Never raises."""
        if self._broken:
            return
        try:
            self.call([{"op": "bye"}])
        except (HexgraftError, OperationFailed):
            pass
        finally:
            self._broken = True

    def _receive(self) -> bytes:
        try:
            return read_frame(self._reader)
        except EndOfStream as end:
            where = " in the middle of an answer" if end.partial else ""
            raise self._lost(f"the runner ended{where}") from end
        except (OSError, ValueError) as error:
            raise self._lost("the runner is gone") from error
        except RunnerLost as error:
            self._broken = True
            raise self._lost(error.message) from error

    def _decode(self, raw: bytes) -> Reply:
        try:
            reply = self._reply.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._lost(f"the runner's answer cannot be read: {error}") from error
        if reply.id not in (self._number, 0) or (reply.id == 0 and reply.error is None):
            raise self._lost(f"the runner answered request {reply.id} instead of {self._number}")
        return reply

    def _lost(self, what: str) -> RunnerLost:
        self._broken = True
        why = self._explain()
        return RunnerLost(f"{what}: {why}" if why else what, LOST_HINT)
