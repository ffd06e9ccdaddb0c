"""Graphs with packed weights run on the runner as in process: the same tokens and trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair import write_pair

from hexgraft.export.cpu.graph import PACKED
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.models.attention import CHOSEN

PROMPT = [40, 51, 7, 260, 33, 12]


@pytest.mark.parametrize("precision", PACKED)
def test_same_tokens_and_trees(tmp_path: Path, runner: LocalRunner, precision: str) -> None:
    path = write_pair(tmp_path, options=ExportOptions((1, 8, 16), 256, precision=precision, attention=CHOSEN))
    bundle = open_bundle(path)
    local = [CpuSession(bundle, role, threads=1) for role in ("target", "draft")]
    remote = [RunnerSession(runner.connection, str(path), role) for role in ("target", "draft")]

    def decode(target: Session, draft: Session, name: str) -> list[Round]:
        drafter = make_drafter(name, bundle, lambda: draft, sampling=Sampling())
        decoder = Decoder(target, drafter, DecodeOptions(max_tokens=60, tree_size=12))
        decoder.begin(PROMPT)
        return list(decoder.rounds())

    plain = [token for one in decode(local[0], local[1], "none") for token in one.tokens]
    for name in ("none", "levels"):
        ours, theirs = decode(local[0], local[1], name), decode(remote[0], remote[1], name)
        assert [token for one in theirs for token in one.tokens] == plain
        assert [one.tree.tokens.tolist() for one in theirs] == [one.tree.tokens.tolist() for one in ours]
    for session in remote:
        session.close()
