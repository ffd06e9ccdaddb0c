"""Every family against transformers: all widths, trees, and positions beyond the original context."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import CONTEXT, FAMILIES, VOCAB, Oracle, save_family

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Floats, Visibility, causal, tree_visibility
from hexgraft.host.tree import TreeBuilder
from hexgraft.models.attention import CHOSEN, FUSED
from hexgraft.models.checkpoint import open_checkpoint

LENGTH = 150
TOLERANCE = 1e-3


def exported(checkpoint: Path, bundle: Path, context: int = CONTEXT, attention: str = CHOSEN) -> Bundle:
    """As `hexgraft export` makes them for the CPU alone."""
    target = open_checkpoint(checkpoint)
    options = ExportOptions((1, 8, 32), min(context, target.config.context), attention=attention)
    export_bundle(target, bundle, options=options, report=lambda step: None)
    return open_bundle(bundle)


def random_tokens(count: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(3).integers(0, VOCAB, count).tolist()
    return tokens


def chunked(session: CpuSession, tokens: list[int], width: int) -> Floats:
    """Logits of every position, computed and stored in passes of `width` rows."""
    session.reset()
    found = []
    for start in range(0, len(tokens), width):
        chunk = tokens[start : start + width]
        places = range(start, start + len(chunk))
        rows = session.forward(chunk, places, causal(start, len(chunk)))
        session.store(range(len(chunk)), places)
        found += [rows.logits(row) for row in range(len(chunk))]
    return np.stack(found)


@pytest.mark.parametrize("attention", [CHOSEN, FUSED])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_equals_transformers(name: str, attention: str, tmp_path: Path) -> None:
    """Every width free and padded, past the original context where RoPE is scaled, then two trees."""
    checkpoint = save_family(tmp_path / "m", name)
    bundle = exported(checkpoint, tmp_path / "b", attention=attention)
    oracle, session = Oracle(checkpoint), CpuSession(bundle)
    tokens = random_tokens(LENGTH)
    expected = oracle.logits(tokens)
    assert expected.std() > 0.05
    padded = CpuSession(open_bundle(tmp_path / "b"), widths=[8, 32], whole=True, share=session)
    for runner, width in ((session, 1), (session, 8), (padded, 8), (padded, 20), (session, 32)):
        logits = chunked(runner, tokens, width)
        np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=0)
    for runner in (session, padded):
        check_trees(runner, oracle, tokens[:40])


def check_trees(session: CpuSession, oracle: Oracle, prefix: list[int]) -> None:
    """A tree in one pass, and the same tree in two passes, its first level stored in scratch slots."""
    chunked(session, prefix, 20)
    start = len(prefix)
    builder = TreeBuilder(9)
    for parent, token in ((0, 2), (0, 6), (1, 5), (2, 3), (2, 5), (4, 8), (3, 9)):
        builder.add(parent, token, 0.5, "test")
    tree = builder.build()
    expected = [
        oracle.logits(prefix + tree.tokens[tree.path(node)].tolist())[-1] for node in range(len(tree))
    ]
    ancestors = tree.ancestors()
    positions = start + tree.depths
    rows = session.forward(tree.tokens.tolist(), positions.tolist(), tree_visibility(start, ancestors))
    for node in range(len(tree)):
        np.testing.assert_allclose(rows.logits(node), expected[node], atol=TOLERANCE, rtol=0)
    # Scratch slots are neither in the order of positions nor next to the prefix.
    slots = [start + 9, start + 3, start + 5]
    session.store([0, 1, 2], slots)
    rest = slice(3, len(tree))
    visible = Visibility(start, ancestors[rest, rest], np.array(slots, np.int32), ancestors[rest, :3])
    rows = session.forward(tree.tokens[rest].tolist(), positions[rest].tolist(), visible)
    for row, node in enumerate(range(3, len(tree))):
        np.testing.assert_allclose(rows.logits(row), expected[node], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("attention", [CHOSEN, FUSED])
@pytest.mark.parametrize("name", ["gemma3", "mistral-window"])
def test_grafted_rows_keep_their_place_in_the_window(name: str, attention: str, tmp_path: Path) -> None:
    """Slots moved, restored and grown are seen as far as their position allows, not their slot."""
    checkpoint = save_family(tmp_path / "m", name, max_position_embeddings=600)
    oracle, session = Oracle(checkpoint), CpuSession(exported(checkpoint, tmp_path / "b", 600, attention))
    tokens = random_tokens(290)
    chunked(session, tokens[:250], 32)
    # A branch whose first token was rejected: rows 1.. are kept, moved down over it, the cache grows.
    branch = [7, *tokens[250:280]]
    positions = [250, *range(250, 280)]
    seen = np.tri(31, dtype=np.bool_)
    seen[1:, 0] = False
    session.forward(branch, positions, tree_visibility(250, seen))
    session.store(range(31), range(250, 281))
    session.move(range(251, 281), range(250, 280))
    rows = session.forward(tokens[280:], range(280, 290), causal(280, 10))
    np.testing.assert_allclose(rows.logits(9), oracle.logits(tokens)[-1], atol=TOLERANCE, rtol=0)
    saved = session.save(280)
    fresh = CpuSession(open_bundle(tmp_path / "b"), share=session)
    fresh.restore(saved)
    rows = fresh.forward(tokens[280:], range(280, 290), causal(280, 10))
    np.testing.assert_allclose(rows.logits(9), oracle.logits(tokens)[-1], atol=TOLERANCE, rtol=0)


def test_a_window_the_context_never_fills_makes_no_input(tmp_path: Path) -> None:
    checkpoint = save_family(tmp_path / "m", "mistral-window")
    short, long = exported(checkpoint, tmp_path / "short", 24), exported(checkpoint, tmp_path / "long", 25)
    assert short.target.window is None
    assert long.target.window == 24
    names = [[value.name for value in CpuSession(b)._runtime.get_inputs()] for b in (short, long)]
    assert set(names[1]) - set(names[0]) == {"attention_mask_local"}


def test_longrope_ends_at_its_original_context(tmp_path: Path) -> None:
    config = open_checkpoint(save_family(tmp_path / "m", "phi3-longrope")).config
    assert config.context == 200
    assert config.context_limit is not None
    assert "longrope" in config.context_limit
