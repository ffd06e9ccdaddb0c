"""One answer as it is decoded: its text shown as it comes, its tokens and why it ended kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import say
from hexgraft.host.counted import counted
from hexgraft.host.decode import Decoder, Round
from hexgraft.host.stats import Stats
from hexgraft.host.stop_strings import AnswerText
from hexgraft.host.text import TextCodec
from hexgraft.host.walk import TokenLogprob
from hexgraft.models.errors import CONNECTION_LOST, HexgraftError


@dataclass(slots=True)
class Generation:
    """`finish` is that of the last round, "interrupted", or "lost" and "failed" with the error that ended
    it."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    error: HexgraftError | None = None


def generate(
    decoder: Decoder,
    answer: AnswerText,
    *,
    show: Callable[[str], None] = lambda text: None,
    watch: Callable[[Round], None] = lambda current: None,
    interrupted: Callable[[], bool] = lambda: False,
    recover: Callable[[HexgraftError], bool] = lambda error: False,
) -> Generation:
    """Decode one answer. `show` is given its text piece by piece, `watch` every round.

    When the place that runs the graphs is lost, or anything else fails once there is an answer, what was
    emitted is kept. After a loss `recover` may bring the decoder to another place and answer True.
    """
    generation = Generation()
    start = len(decoder.tokens)
    show(answer.take())
    while True:
        try:
            _rounds(decoder, answer, generation, show, watch, interrupted)
        except HexgraftError as error:
            lost = error.exit_code == CONNECTION_LOST
            generation.tokens = decoder.tokens[start:]
            if not lost and not generation.tokens:
                raise
            show(answer.take())
            generation.finish = decoder.finish
            if generation.finish is None and lost and recover(error):
                continue
            if generation.finish is None or not lost:
                generation.error = error
            generation.finish = generation.finish or ("lost" if lost else "failed")
        break
    show(answer.finish())
    generation.text = answer.text
    return generation


def _rounds(
    decoder: Decoder,
    answer: AnswerText,
    generation: Generation,
    show: Callable[[str], None],
    watch: Callable[[Round], None],
    interrupted: Callable[[], bool],
) -> None:
    for current in decoder.rounds():
        generation.tokens += current.tokens
        generation.logprobs += current.logprobs
        generation.finish = current.finish
        show(answer.take())
        if current.degraded:
            say("\nwarning: logits were not finite in a tree; this round fell back to one node")
        watch(current)
        if current.finish is None and interrupted():
            generation.finish = "interrupted"
            return


def keep_quiet(text: str) -> None:
    """In the place of `print_piece` with --json, whose object has the text."""


def print_piece(text: str) -> None:
    """A piece of an answer, on stdout at once."""
    click.echo(text, nl=False)
    sys.stdout.flush()


def summary(stats: Stats, finish: str | None) -> str:
    """One line about a run: why it ended, how fast it was, what the trees brought."""
    reused = f", {stats.reused_tokens} of them from the cache" if stats.reused_tokens else ""
    parts = [
        f"{counted(stats.tokens, 'token')} in {counted(stats.rounds, 'round')} "
        f"({stats.tokens_per_round:.2f} a round)",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"prompt {counted(stats.prompt_tokens, 'token')} in {stats.seconds.get('prefill', 0):.2f} s{reused}",
    ]
    if stats.draft_passes:
        passes = str(stats.draft_passes) + (" draft pass" if stats.draft_passes == 1 else " draft passes")
        parts.append(passes)
    return f"[{finish}] " + ", ".join(parts)


def answer_json(generation: Generation, bundle: Bundle, decoder: Decoder) -> dict[str, Any]:
    """For --json: an answer, and what it came from."""
    return {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish": generation.finish,
        "bundle": bundle.digest,
        "drafter": decoder.drafter.name,
        "verifier": decoder.verifier.name,
        "stats": decoder.stats.as_dict(),
    }


def logprobs_json(logprobs: list[TokenLogprob], codec: TextCodec, best: int) -> list[dict[str, Any]]:
    """For --json: each emitted token with its log probability and the `best` ones in its place."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "text": codec.token(token), "logprob": round(logprob, 6)}

    return [
        {**entry(each.token, each.logprob), "top": [entry(*pair) for pair in each.top[:best]]}
        for each in logprobs
    ]
