"""A draft whose context is smaller than the target's."""

from __future__ import annotations

import json
from pathlib import Path

from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import NoDraft
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.models.checkpoint import open_checkpoint


def test_a_draft_with_a_smaller_context_ends_in_plain_rounds(tmp_path: Path) -> None:
    """Past the draft's 64 slots there is nothing to draft with; the text goes on, token for token."""
    target = write_tiny_hf(tmp_path / "target")
    draft = write_tiny_hf(tmp_path / "draft", noise_of=target, noise=0.1)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    export_bundle(
        open_checkpoint(target),
        tmp_path / "bundle",
        draft=open_checkpoint(draft),
        options=ExportOptions((1, 8, 16), 256),
        report=lambda step: None,
    )
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.draft is not None
    assert bundle.draft.context == 64
    session = CpuSession(bundle, widths=[16], whole=True)
    for name in ("levels", "best-first", "chain", "static", "lookup+levels"):
        for length in (8, 60, 64, 100):
            prompt = [(7 * i) % 300 + 3 for i in range(length)]
            reference = Decoder(session, NoDraft(), DecodeOptions(120, 1))
            reference.begin(prompt)
            for _ in reference.rounds():
                pass
            drafter = make_drafter(name, bundle, lambda: CpuSession(bundle, "draft"))
            decoder = Decoder(session, drafter, DecodeOptions(120, 16))
            decoder.begin(prompt)
            rounds = list(decoder.rounds())
            assert decoder.tokens == reference.tokens
            passes = decoder.stats.draft_passes
            assert (passes > 0) == (length < 64), (name, length)
            if name != "lookup+levels":
                assert all(len(r.tree) == 1 for r in rounds if r.context >= 64)
                assert any(len(r.tree) > 1 for r in rounds) == (length < 64)
