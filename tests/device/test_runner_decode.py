"""Decoding through the runner gives the tokens and trees of decoding in process, round by round."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.local_runner import LocalRunner
from hexgraft.host.runner_session import RunnerSession
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session

PROMPT = [40, 51, 7, 260, 33, 12]


def decode(bundle: Bundle, target: Session, draft: Session, drafter: str, sampling: Sampling) -> list[Round]:
    options = DecodeOptions(max_tokens=60, tree_size=12, sampling=sampling, margins=True)
    decoder = Decoder(target, make_drafter(drafter, bundle, lambda: draft, sampling=sampling), options)
    decoder.begin(PROMPT)
    return list(decoder.rounds())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["none", "lookup", "levels", "best-first"])
def test_same_rounds(bundle: Bundle, runner: LocalRunner, drafter: str, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=5)
    place = str(Path(bundle.path))
    local = CpuSession(bundle, "target"), CpuSession(bundle, "draft")
    remote = tuple(RunnerSession(runner.connection, place, role) for role in ("target", "draft"))
    ours = decode(bundle, *local, drafter, sampling)
    theirs = decode(bundle, *remote, drafter, sampling)
    assert sum(len(r.tokens) for r in ours) == 60
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert other.tokens == mine.tokens
        assert other.accepted == mine.accepted
        assert other.tree.tokens.tolist() == mine.tree.tokens.tolist()
        assert other.tree.parents.tolist() == mine.tree.parents.tolist()
        assert other.margins == pytest.approx(mine.margins, abs=1e-5)
    for session in remote:
        session.close()
