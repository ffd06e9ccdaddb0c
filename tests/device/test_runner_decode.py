"""Decoding through the runner gives the tokens and trees of decoding in process, round by round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession, open_local_session
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session, causal
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.fetch import fetch_smollm2

PROMPT = [40, 51, 7, 260, 33, 12]


def decode(
    bundle: Bundle,
    target: Session,
    draft: Session,
    drafter: str,
    sampling: Sampling,
    prompt: list[int] = PROMPT,
) -> list[Round]:
    options = DecodeOptions(max_tokens=60, tree_size=12, sampling=sampling, margins=True)
    decoder = Decoder(target, make_drafter(drafter, bundle, lambda: draft, sampling=sampling), options)
    decoder.begin(prompt)
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


@pytest.mark.slow
def test_same_rounds_of_a_real_model(binary: Path, tmp_path: Path) -> None:
    """SmolLM2, exported as a user would: tokens and trees in process and through the runner."""
    checkpoint = fetch_smollm2()
    path = tmp_path / "bundle"
    options = ExportOptions((1, 16), 512)
    export_bundle(open_checkpoint(checkpoint), path, options=options, report=lambda step: None)
    bundle = open_bundle(path)
    local, remote = CpuSession(bundle, threads=1), open_local_session(bundle, binary=binary, threads=1)
    prompt = [1, 4093, 198, 504, 3575, 282, 4649, 314, 260, 1] * 4
    rounds = [decode(bundle, session, session, "lookup", Sampling(), prompt) for session in (local, remote)]
    for mine, other in zip(*rounds, strict=True):
        assert other.tokens == mine.tokens
        assert other.tree.tokens.tolist() == mine.tree.tokens.tolist()
    visible = causal(40, 16)
    ours, theirs = (s.forward(list(range(100, 116)), range(40, 56), visible) for s in (local, remote))
    for row in range(16):
        np.testing.assert_allclose(theirs.logits(row), ours.logits(row), rtol=0, atol=1e-5)
    remote.close()
