"""hexgraft itself: a bundle on the CPU session; a mode is a drafter, the nodes of its trees, and whatever
`--draft-option` takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from serving import Clock, serve

from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.knobs import parse_knobs
from hexgraft.host.drafters.registry import make_drafter


def load(model: str, threads: int, mode: str) -> Callable[[list[int], int], Clock]:
    bundle = open_bundle(Path(model))
    session = CpuSession(bundle, threads=threads)
    name, nodes, *pairs = (mode if mode != "plain" else "none 1").split(" ")
    open_draft = partial(CpuSession, bundle, "draft", threads=threads)
    drafter = make_drafter(name, bundle, open_draft, knobs=parse_knobs(name, pairs))

    def generate(prompt: list[int], count: int) -> Clock:
        clock = Clock()
        decoder = Decoder(session, drafter, DecodeOptions(count, int(nodes)))
        decoder.begin(prompt)
        for one in decoder.rounds():
            clock.add(one.tokens)
        return clock

    return generate


if __name__ == "__main__":
    serve(load)
