"""Settings run for real beside plain decoding, in turn: a machine that slows down slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.measure.metered import Clock
from hexgraft.host.measure.profile import Spread
from hexgraft.host.session import Session


@dataclass(frozen=True, slots=True)
class Contender:
    """What is run under a title; the drafter is closed by whoever made it."""

    title: str
    drafter: Drafter
    options: DecodeOptions


@dataclass(frozen=True, slots=True)
class Result:
    """Tokens a second over all prompts, repeat by repeat, and against the plain runs of the same repeat."""

    title: str
    speed: Spread
    ratio: Spread


@dataclass(slots=True)
class Contest:
    """`repeats` times over every prompt: plain decoding, then every contender."""

    target: Session
    prompts: Sequence[Sequence[int]]
    options: DecodeOptions
    repeats: int = 3
    clock: Clock = time.perf_counter
    progress: Callable[[], None] = field(default=lambda: None)

    def runs(self, contenders: int) -> int:
        """How many times `progress` will be called."""
        return self.repeats * len(self.prompts) * (contenders + 1)

    def run(self, contenders: Sequence[Contender]) -> tuple[Result, list[Result]]:
        """Plain decoding's result, and one a contender."""
        plain = Contender("plain", NoDraft(), self.options)
        everyone = [plain, *contenders]
        speeds: dict[str, list[float]] = {each.title: [] for each in everyone}
        for _ in range(self.repeats):
            tokens = dict.fromkeys(speeds, 0)
            seconds = dict.fromkeys(speeds, 0.0)
            for prompt in self.prompts:
                for each in everyone:
                    count, spent = self._once(each, prompt)
                    tokens[each.title] += count
                    seconds[each.title] += spent
                    self.progress()
            for title, values in speeds.items():
                values.append(tokens[title] / seconds[title])
        results = [_result(each.title, speeds[each.title], speeds["plain"]) for each in everyone]
        return results[0], results[1:]

    def _once(self, contender: Contender, prompt: Sequence[int]) -> tuple[int, float]:
        decoder = Decoder(self.target, contender.drafter, contender.options)
        decoder.begin(prompt)
        begun = self.clock()
        for _ in decoder.rounds():
            pass
        return decoder.stats.tokens, self.clock() - begun


def _result(title: str, speeds: list[float], plain: list[float]) -> Result:
    ratios = [mine / theirs for mine, theirs in zip(speeds, plain, strict=True)]
    return Result(title, Spread.of(speeds), Spread.of(ratios))
