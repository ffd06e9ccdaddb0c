"""hexgraft beside other runtimes: the same weights, prompts, threads and number of greedy tokens, side by
side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.figure import Figure
from benchmarks.peers.contest import FUSED_NAME, HALF, OURS, Result, precisions, run
from benchmarks.smollm2 import smollm2_bundle, smollm2_checkpoint
from hexgraft.host.lab.prompts import CATEGORIES, LAB_PROMPTS
from hexgraft.host.text import TextCodec


def figures() -> Iterator[Figure]:
    """One prompt of each of the lab's kinds; goals are for all of them together."""
    contests = precisions(smollm2_checkpoint())
    codec = TextCodec(smollm2_bundle())
    prompts = {}
    for kind in CATEGORIES:
        text = next(prompt.text for prompt in LAB_PROMPTS if prompt.category == kind)
        prompts[kind] = codec.encode_chat([{"role": "user", "content": text}])
    for precision, contenders in contests.items():
        results = list(run(contenders, prompts))
        print(table(precision, results), file=sys.stderr, flush=True)
        peers = [result for result in results if not result.contender.startswith(OURS)]
        fused = [result for result in results if result.contender.startswith(FUSED_NAME)]
        ours = [result for result in results if result not in (*peers, *fused)]
        goals = ("", "") if precision == HALF else (">= 0.9", ">= 1.2")
        for name, group in ((precision, ours), (f"{precision}, fused", fused)):
            if group and peers:
                yield from _standing(name, group, peers, goals)


def _standing(
    name: str, ours: Sequence[Result], peers: Sequence[Result], goals: tuple[str, str]
) -> Iterator[Figure]:
    """Where one of our bundles stands among the peers."""
    plain = [[result for result in group if result.mode == "plain"] for group in (ours, peers)]
    if all(plain):
        yield _figure(f"{name}: plain, of the fastest peer", *plain, CATEGORIES, goals[0])
    best = f"{name}: our best, of the peers' best"
    yield _figure(best, ours, peers, CATEGORIES, goals[1])
    for kind in CATEGORIES:
        yield _figure(best.replace(":", f", {kind}:"), ours, peers, [kind], "")


def _figure(
    name: str, ours: Sequence[Result], peers: Sequence[Result], prompts: Sequence[str], goal: str
) -> Figure:
    best, rival = (max(group, key=lambda one: median(one.over(prompts))) for group in (ours, peers))
    return Figure(f"{name} ({rival.label})", best.ratio(rival, prompts), "x", goal)


def table(precision: str, results: Sequence[Result]) -> str:
    """Markdown: tokens a second by prompt and over all, how many times as fast as our plain decoding that is,
    and how many texts are others than our plain decoding's, from which token on."""
    if not results:
        return f"{precision}: nobody ran"
    prompts = list(results[0].speeds)
    head = [precision, *prompts, "all", "of ours", "other texts"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for result in results:
        cells = [f"{median(result.speeds[prompt]):.1f}" for prompt in prompts]
        cells += [f"{median(result.over(prompts)):.1f}", f"{result.ratio(results[0], prompts):.2f}x"]
        lines.append(f"| {result.label} | {' | '.join(cells)} | {_others(result, results[0])} |")
    return "\n".join(lines) + "\n"


def _others(result: Result, reference: Result) -> str:
    places = [_differs(result.tokens[prompt], tokens) for prompt, tokens in reference.tokens.items()]
    found = [place for place in places if place is not None]
    return f"{len(found)} of {len(places)}, from {min(found)} on" if found else "none"


def _differs(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Where two texts part, None if they do not."""
    for place, (one, other) in enumerate(zip(tokens, reference, strict=False)):
        if one != other:
            return place
    return None if len(tokens) >= len(reference) else len(tokens)
