"""Traces on disk: written line by line, and refused when read if damaged, of another version, or
inconsistent in themselves."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import pairwise
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Self

import msgspec

from hexgraft.host.atomic_file import check_replaced
from hexgraft.host.traces.trace import FORMAT, End, Header, Record, Trace, TraceError, TraceRound, tokens_hash
from hexgraft.models.errors import HexgraftError, UsageError, look_at, mistyped

HINT = "record it again: `hexgraft run BUNDLE -p PROMPT --trace FILE`"
_START = b'{"record":"header"'
_CERTAIN = 1 + 1e-3
"""Above 1 by what rounding adds in products and sums of probabilities."""
_CLOCKS = -1.0
"""Seconds: what a phone says its passes took goes off what was measured here, and clocks differ a little."""
_DECODER = msgspec.json.Decoder(Header | TraceRound | End)


class TraceWriter:
    """Writes records to a file line by line, so that an interrupted run keeps its trace.

    A trace that stands at the name is replaced; any other file is refused with UsageError, and so is a trace
    that another run is writing.
    """

    def __init__(self, path: Path) -> None:
        try:
            check_replaced(path, _START, "trace", "--trace")
            self._file = path.open("ab")
            self._claim(path)
        except OSError as error:
            folder = quote(str(path.parent))
            way = f"mkdir -p {folder}" if error.errno == errno.ENOENT else f"see `ls -ld {folder}`"
            raise UsageError(
                f"cannot write the trace {path}: {error.strerror}",
                f"{way}, or choose another name for --trace",
            ) from error
        self._path, self._encoder = path, msgspec.json.Encoder()

    def _claim(self, path: Path) -> None:
        """Take the file for this run alone, and empty it. Two runs that write one trace leave a mixture of
        theirs, or one of them, and both would say that all went well."""
        if not path.is_file():  # a pipe or a device is for whoever has it
            return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UsageError(
                f"another run is writing the trace {path}", "choose another name for --trace, or wait"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            # A file system without locks.
        self._file.truncate(0)

    def write(self, record: Record) -> None:
        """Raises HexgraftError where the disk does not take it."""
        try:
            self._file.write(self._encoder.encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            raise HexgraftError(
                f"the trace {self._path} ends early: {error.strerror}",
                "free some space, or choose another place for --trace",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # what is left in its buffer was refused before, and told
            self._file.close()


class _Version(msgspec.Struct):
    record: str
    format: int | None = None


def read_trace(path: Path) -> Trace:
    """A trace from a file; one whose last lines are missing is read as far as it goes and has no `end`."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        hint = HINT
        if error.errno == errno.EISDIR:
            hint = "give the file that `hexgraft run --trace FILE` wrote"
        elif error.errno == errno.EACCES:
            hint = look_at(path)
        failed = TraceError(f"cannot read the trace {path}: {error.strerror}", hint)
        raise (mistyped(failed) if error.errno in (errno.ENOENT, errno.EISDIR) else failed) from error
    # What follows the last line end was being written when the run was cut off.
    whole = lines[:-1]
    trace = Trace(_header(whole[0] if whole else b"", path))
    committed = len(trace.header.prompt) - 1
    for number, line in enumerate(whole[1:], 2):
        where = f"{path}, line {number}"
        if trace.end is not None:
            raise TraceError(f"{where}: there is more after the end record", HINT)
        record = _decode(line, where)
        if isinstance(record, End):
            trace.end = record
        elif isinstance(record, TraceRound):
            fault = _fault(record, trace, committed)
            if fault:
                raise TraceError(f"{where}: {fault}", HINT)
            trace.rounds.append(record)
            committed += len(record.accepted)
        else:
            raise TraceError(f"{where}: a second header", HINT)
    if trace.end is not None and (
        trace.end.sha256 != tokens_hash(trace.emitted) or trace.end.tokens != len(trace.emitted)
    ):
        raise TraceError(f"{path}: its rounds do not hold the tokens its end record has the hash of", HINT)
    return trace


def _header(line: bytes, path: Path) -> Header:
    try:
        version = msgspec.json.decode(line, type=_Version)
    except (msgspec.DecodeError, UnicodeDecodeError):
        version = _Version("")
    if version.record != "header":
        raise TraceError(f"{path} is not a trace", HINT)
    if version.format != FORMAT:
        raise TraceError(
            f"{path} is a trace of format {version.format}, this hexgraft reads format {FORMAT}", HINT
        )
    header = _decode(line, f"{path}, line 1")
    if not isinstance(header, Header) or not header.prompt or not _in(header.prompt, header.vocab):
        raise TraceError(f"{path}, line 1: the prompt is empty or not of this vocabulary", HINT)
    fault = _header_fault(header)
    if fault:
        raise TraceError(f"{path}, line 1: {fault}", HINT)
    return header


def _header_fault(header: Header) -> str | None:
    """What number of a header no run can have."""
    if header.capacity < len(header.prompt):
        return f"a prompt of {len(header.prompt)} tokens in a context of {header.capacity}"
    if header.widths is not None and (not header.widths or min(header.widths) < 1):
        return f"the widths {header.widths} are not positive numbers"
    for name, number in (
        ("tree_size", header.tree_size),
        ("tree_depth", header.tree_depth),
        ("max_tokens", header.max_tokens),
    ):
        if number is not None and number < 1:
            return f"{name} {number} is not positive"
    if not _in(header.stops, header.vocab):
        return f"a stop token is outside the vocabulary of {header.vocab}"
    return None


def _decode(line: bytes, where: str) -> Header | TraceRound | End:
    try:
        record: Header | TraceRound | End = _DECODER.decode(line)
        return record
    except (msgspec.DecodeError, UnicodeDecodeError, HexgraftError) as error:
        raise TraceError(f"{where}: {error}", HINT) from error


def _fault(record: TraceRound, trace: Trace, committed: int) -> str | None:
    """What is wrong with a round that is to follow `trace`, whose cache holds `committed` tokens."""
    nodes, vocab = len(record.tokens), trace.header.vocab
    last = trace.rounds[-1].emitted[-1] if trace.rounds else trace.header.prompt[-1]
    path = record.accepted
    if record.number != len(trace.rounds) + 1 or record.context != committed:
        return f"round {record.number} at position {record.context} does not follow the line before"
    if not nodes or not len(record.parents) == len(record.probabilities) == len(record.sources) == nodes:
        return "tokens, parents, probabilities and sources differ in number"
    if record.parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(record.parents[1:], 1)):
        return "the nodes are no tree"
    if record.tokens[0] != last:
        return "the root is not the last token of the text"
    if path[:1] != [0] or any(not 0 < n < nodes for n in path[1:]):
        return "the accepted nodes are not in the tree"
    if any(record.parents[below] != above for above, below in pairwise(path)):
        return "the accepted nodes are no path"
    if len(record.emitted) != len(path):
        return f"{len(record.emitted)} tokens emitted at {len(path)} accepted nodes"
    if record.emitted[:-1] != [record.tokens[n] for n in path[1:]]:
        return "the emitted tokens are not those of the accepted nodes"
    if any(entries and len(entries) != len(path) for entries in (record.margins, record.judged)):
        return "margins or candidates differ in number from the accepted nodes"
    judged = [token for each in record.judged for token in (each.token, *(i for i, _ in each.top))]
    if not _in([*record.tokens, *record.emitted, *judged], vocab):
        return f"a token is outside the vocabulary of {vocab}"
    return _number_fault(record, trace.header)


def _number_fault(record: TraceRound, header: Header) -> str | None:
    """What number of a round no run can have."""
    nodes = len(record.tokens)
    if record.width < nodes:
        return f"a pass {record.width} rows wide has no room for {nodes} nodes"
    if record.context + len(record.accepted) > header.capacity:
        return f"more tokens than the context of {header.capacity} holds"
    if any(chance is not None and not 0 <= chance <= _CERTAIN for chance in record.probabilities):
        return "a probability is not in 0..1"
    if any(margin is not None and margin < 0 for margin in record.margins):
        return "a margin is negative"
    if any(seconds < _CLOCKS for seconds in record.seconds.values()):
        return "a phase took less than no time"
    return None


def _in(tokens: Sequence[int], vocab: int) -> bool:
    return all(0 <= token < vocab for token in tokens)
