"""`--trace FILE`: what a command records of its run, and nothing where no file was asked for."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import Decoder, Round
from hexgraft.host.drafters.adaptive import Adaptive
from hexgraft.host.text import TextCodec
from hexgraft.host.traces.trace import Record, Recorder, top_recorded
from hexgraft.host.traces.trace_file import TraceWriter
from hexgraft.models.errors import HexgraftError

trace_option = click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Record the run round by round, for compare, replay and tree.",
)


def candidates_wanted(options: dict[str, Any]) -> int | None:
    """`DecodeOptions.logprobs`: as many as were asked for, and no fewer than a trace holds."""
    asked: int | None = options["logprobs"]
    return max(asked or 0, top_recorded(options["temperature"])) if options["trace"] else asked


class Tracing:
    """Records one run, from before its prefill on. A disk that takes no more ends the record and not the run:
    `problem` is then what to say when the answer is out."""

    def __init__(self, file: Path | None, codec: TextCodec) -> None:
        self.show = codec.token
        self._recorder = Recorder(codec.token)
        self._writer = TraceWriter(file) if file is not None else None
        self.problem: HexgraftError | None = None

    def begin(self, bundle: Bundle, decoder: Decoder, prompt: list[int], options: dict[str, Any]) -> None:
        if self._writer:
            whole, drafter = options["widths"] == "bundle", decoder.drafter
            knobs = drafter.knobs if isinstance(drafter, Adaptive) else options["draft_option"]
            header = self._recorder.header(bundle, decoder, prompt, whole=whole, knobs=knobs)
            self._write(header)

    def round(self, current: Round) -> None:
        if self._writer:
            self._write(self._recorder.round(current))

    def end(self, decoder: Decoder, finish: str | None) -> None:
        if self._writer:
            self._write(self._recorder.end(decoder.stats, finish))

    def _write(self, record: Record) -> None:
        if self._writer and self.problem is None:
            try:
                self._writer.write(record)
            except HexgraftError as error:
                self.problem = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer:
            self._writer.__exit__(kind, error, trace)
