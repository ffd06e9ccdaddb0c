"""hexgraft itself: a bundle on the CPU session, plain or with trees drafted by lookup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from serving import Clock, serve

from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import NoDraft
from hexgraft.host.drafters.lookup import Lookup

NODES = 8


def load(model: str, threads: int, lookup: bool) -> Callable[[list[int], int, bool], Clock]:
    session = CpuSession(open_bundle(Path(model)), threads=threads)

    def generate(prompt: list[int], count: int, speculate: bool) -> Clock:
        clock = Clock()
        drafter = Lookup() if speculate else NoDraft()
        decoder = Decoder(session, drafter, DecodeOptions(count, NODES if speculate else 1))
        decoder.begin(prompt)
        for one in decoder.rounds():
            clock.add(one.tokens)
        return clock

    return generate


if __name__ == "__main__":
    serve(load)
