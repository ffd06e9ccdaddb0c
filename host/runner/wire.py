"""Frames of the wire protocol (device/PROTOCOL.md): a 32-bit length, then one MessagePack map."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from hexgraft.models.errors import CONNECTION_LOST, HexgraftError

PROTOCOL = 2
"""The runner must speak exactly this version; there is no compatibility code."""

FRAME_LIMIT = 64 << 20
"""Bytes of one message, in both directions."""

BULK_LIMIT = FRAME_LIMIT - (1 << 20)
"""Bulk bytes one message may carry beside everything else."""


class Reader(Protocol):
    """Where bytes of the runner come from; `read` may return fewer bytes than asked, and b"" at the end."""

    def read(self, count: int, /) -> bytes | None: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> int | None: ...

    def flush(self) -> None: ...


class WireError(msgspec.Struct, frozen=True):
    """What a runner says of a failed operation; `op` is its index in the request, -1 for the frame itself."""

    code: str
    message: str
    hint: str = ""
    op: int = -1


class RuntimeFacts(msgspec.Struct, frozen=True):
    """The ONNX Runtime a runner loaded."""

    version: str
    api: int


class Hello(msgspec.Struct, frozen=True):
    """The first frame, from the runner. `error` tells why no runtime could be loaded."""

    hello: str
    protocol: int
    version: str = ""
    build: str = ""
    pid: int = 0
    frame_limit: int = 0
    providers: list[str] = []
    ort: RuntimeFacts | None = None
    error: WireError | None = None


class Reply(msgspec.Struct, frozen=True):
    """Results of a request's operations in order; an error ends the list early."""

    id: int
    results: list[dict[str, Any]]
    error: WireError | None = None


class RunnerError(HexgraftError):
    """An operation a runner refused or could not carry out; `code` is the protocol's."""

    def __init__(self, message: str, hint: str | None = None, code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class RunnerLost(RunnerError):
    """The stream to a runner broke, or what came over it is not the protocol."""

    exit_code = CONNECTION_LOST


class ProtocolMismatch(RunnerError):
    """A runner of another version."""


class EndOfStream(Exception):
    """The other end closed the stream; `partial` if it did so inside a frame."""

    def __init__(self, partial: bool) -> None:
        super().__init__("the stream ended")
        self.partial = partial


_encoder = msgspec.msgpack.Encoder()


def pack_frame(message: Any) -> bytes:
    """One frame; raises RunnerError if the message passes the limit."""
    body = _encoder.encode(message)
    if len(body) > FRAME_LIMIT:
        raise RunnerError(f"a request of {len(body)} bytes passes the frame limit of {FRAME_LIMIT}")
    return len(body).to_bytes(4, "little") + body


def read_frame(reader: Reader) -> bytes:
    """The bytes of one message; raises EndOfStream, or RunnerLost for a length no runner sends."""
    size = int.from_bytes(_read_exactly(reader, 4, inside=False), "little")
    if size > FRAME_LIMIT:
        raise RunnerLost(
            "the runner's answer is not a protocol frame",
            "something else writes to its output; only the runner may",
        )
    return _read_exactly(reader, size, inside=True)


def _read_exactly(reader: Reader, count: int, *, inside: bool) -> bytes:
    data = reader.read(count)
    if data is not None and len(data) == count:
        return data
    parts = bytearray(data or b"")
    while data and len(parts) < count:
        data = reader.read(count - len(parts))
        parts += data or b""
    if len(parts) < count:
        raise EndOfStream(partial=inside or bool(parts))
    return bytes(parts)
