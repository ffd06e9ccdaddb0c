"""hexgraft itself: a bundle on the CPU session; a mode is a drafter and the nodes of its trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from serving import Clock, serve

from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter


def load(model: str, threads: int, mode: str) -> Callable[[list[int], int], Clock]:
    bundle = open_bundle(Path(model))
    session = CpuSession(bundle, threads=threads)
    name, _, nodes = mode.partition(" ")
    drafter = make_drafter(
        "none" if name == "plain" else name, bundle, partial(CpuSession, bundle, "draft", threads=threads)
    )

    def generate(prompt: list[int], count: int) -> Clock:
        clock = Clock()
        decoder = Decoder(session, drafter, DecodeOptions(count, int(nodes or 1)))
        decoder.begin(prompt)
        for one in decoder.rounds():
            clock.add(one.tokens)
        return clock

    return generate


if __name__ == "__main__":
    serve(load)
