"""Models whose graphs take more inputs than most: windows, and RoPE of their own for those layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import VOCAB, save_family

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import causal, tree_visibility
from hexgraft.models.attention import FUSED, STACKED
from hexgraft.models.checkpoint import open_checkpoint


@pytest.mark.parametrize("attention", [STACKED, FUSED])
@pytest.mark.parametrize(("name", "inputs"), [("gemma3", 3), ("mistral-window", 1)])
def test_windows_match_the_session_in_process(
    name: str, inputs: int, attention: str, runner: LocalRunner, tmp_path: Path
) -> None:
    """A rejected row, a branch moved down over it, growth, save and restore, all beyond the window."""
    checkpoint = open_checkpoint(save_family(tmp_path / "m", name, max_position_embeddings=600))
    options = ExportOptions((1, 8, 32), 600, attention=attention)
    export_bundle(checkpoint, tmp_path / "b", options=options, report=lambda step: None)
    bundle = open_bundle(tmp_path / "b")
    local = CpuSession(bundle)
    names = [value.name for value in local._runtime.get_inputs()]
    assert sum(name.endswith("_local") for name in names) == inputs
    remote = RunnerSession(runner.connection, str(bundle.path))
    tokens = np.random.default_rng(3).integers(0, VOCAB, 290).tolist()
    seen = np.tri(31, dtype=np.bool_)
    seen[1:, 0] = False
    found = []
    for session in (local, remote):
        for start in range(0, 250, 25):
            session.forward(tokens[start : start + 25], range(start, start + 25), causal(start, 25))
            session.store(range(25), range(start, start + 25))
        branch, positions = [7, *tokens[250:280]], [250, *range(250, 280)]
        session.forward(branch, positions, tree_visibility(250, seen))
        session.store(range(31), range(250, 281))
        session.move(range(251, 281), range(250, 280))
        first = session.forward(tokens[280:], range(280, 290), causal(280, 10)).logits(9)
        saved = session.save(280)
        session.reset()
        session.restore(saved)
        again = session.forward(tokens[280:], range(280, 290), causal(280, 10)).logits(9)
        found.append((first, again))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-5)
    remote.close()
