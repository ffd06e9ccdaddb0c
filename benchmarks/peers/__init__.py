"""hexgraft beside other runtimes: the same weights, prompts, threads and number of greedy tokens, side by
side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure
from benchmarks.peers.contest import HALF, OURS, Result, precisions, run
from benchmarks.smollm2 import smollm2_checkpoint
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cli.demo_prompts import PROMPTS
from hexgraft.host.text import TextCodec

CHOSEN = ("chat", "copy-edit")


def figures() -> Iterator[Figure]:
    source = smollm2_checkpoint()
    contests = precisions(source)
    codec = TextCodec(open_bundle(contests["fp32"][0].make(Path())))
    prompts = {name: codec.encode_chat([{"role": "user", "content": PROMPTS[name]}]) for name in CHOSEN}
    for precision, contenders in contests.items():
        results = list(run(contenders, prompts))
        print(table(precision, results), file=sys.stderr, flush=True)
        ours = [result for result in results if result.contender.startswith(OURS)]
        peers = [result for result in results if result not in ours]
        if not ours or not peers:
            continue
        goals = ("", "") if precision == HALF else (">= 0.9", ">= 1.2")
        plain = [result for result in peers if result.mode == "plain"]
        for prompt in prompts:
            if plain:
                name = f"{precision}, {prompt}: plain, of the fastest peer"
                yield _figure(name, ours[:1], plain, prompt, goals[0])
            yield _figure(
                f"{precision}, {prompt}: our best, of the peers' best", ours, peers, prompt, goals[1]
            )


def _figure(name: str, ours: Sequence[Result], peers: Sequence[Result], prompt: str, goal: str) -> Figure:
    best, rival = (max(group, key=lambda one: median(one.speeds[prompt])) for group in (ours, peers))
    return Figure(f"{name} ({rival.label})", best.ratio(rival, prompt), "x", goal)


def table(precision: str, results: Sequence[Result]) -> str:
    """Markdown: speeds, how many times as fast as our plain decoding that is, and from which token on
    the output is another than our plain decoding's."""
    if not results:
        return f"{precision}: nobody ran"
    prompts = list(results[0].speeds)
    head = [f"{prompt}: {what}" for prompt in prompts for what in ("tokens/s", "of ours", "differs at")]
    lines = [f"| {precision} | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for result in results:
        cells = []
        for prompt in prompts:
            cells += [
                f"{median(result.speeds[prompt]):.1f}",
                f"{result.ratio(results[0], prompt):.2f}x",
                _differs(result.tokens[prompt], results[0].tokens[prompt]),
            ]
        lines.append(f"| {result.label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _differs(tokens: Sequence[int], reference: Sequence[int]) -> str:
    for place, (one, other) in enumerate(zip(tokens, reference, strict=False)):
        if one != other:
            return str(place)
    return "never" if len(tokens) >= len(reference) else f"ends at {len(tokens)}"
