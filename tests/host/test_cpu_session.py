"""The CPU session and its graph: trees of every shape, slots, pads, stale rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pair import make_pair
from sequential import commit

from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Session, Visibility, causal, tree_visibility
from hexgraft.host.tree import TokenTree, TreeBuilder
from hexgraft.models.attention import FUSED, STACKED
from hexgraft.models.errors import DecodeError

VOCAB = 320
PREFIX = [5, 300, 17, 42, 9, 271, 33]


@pytest.fixture(scope="module", params=[STACKED, FUSED])
def attention(request: pytest.FixtureRequest) -> str:
    """Rows beside the cache, and rows behind its slots."""
    return str(request.param)


@pytest.fixture(scope="module")
def bundle(attention: str, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    options = ExportOptions((1, 8, 16, 32), 256, attention=attention)
    return make_pair(tmp_path_factory.mktemp("pair"), options=options)


@pytest.fixture(scope="module")
def session(bundle: Bundle) -> CpuSession:
    return CpuSession(bundle)


@pytest.fixture(scope="module")
def fixed(bundle: Bundle) -> CpuSession:
    return CpuSession(bundle, widths=[1, 8, 16, 32], whole=True)


@st.composite
def trees(draw: st.DrawFn, most: int = 32) -> TokenTree:
    builder = TreeBuilder(draw(st.integers(0, VOCAB - 1)))
    for _ in range(draw(st.integers(0, most - 1))):
        builder.add(draw(st.integers(0, len(builder) - 1)), draw(st.integers(0, VOCAB - 1)), 0.5, "test")
    return builder.build()


def tree_logits(session: Session, prefix: int, tree: TokenTree) -> NDArray[np.float32]:
    rows = session.forward(
        tree.tokens.tolist(), (prefix + tree.depths).tolist(), tree_visibility(prefix, tree.ancestors())
    )
    return np.stack([rows.logits(row) for row in range(len(tree))])


@given(tree=trees())
@settings(max_examples=40)
def test_a_node_has_the_logits_of_its_path_alone(
    session: CpuSession, fixed: CpuSession, tree: TokenTree
) -> None:
    for place in (session, fixed):
        commit(place, PREFIX)
        together = tree_logits(place, len(PREFIX), tree)
        leaves = [node for node in range(len(tree)) if not tree.children(node)]
        for leaf in leaves[:6]:
            path = tree.path(leaf)
            tokens = tree.tokens[path].tolist()
            places = range(len(PREFIX), len(PREFIX) + len(path))
            alone = place.forward(tokens, places, causal(len(PREFIX), len(path)))
            for row, node in enumerate(path):
                np.testing.assert_allclose(together[node], alone.logits(row), atol=2e-4, rtol=0)


@given(tree=trees(), data=st.data())
@settings(max_examples=40)
def test_changing_a_token_changes_no_bit_outside_its_subtree(
    session: CpuSession, tree: TokenTree, data: st.DataObject
) -> None:
    commit(session, PREFIX)
    before = tree_logits(session, len(PREFIX), tree)
    node = data.draw(st.integers(0, len(tree) - 1))
    tree.tokens[node] = (tree.tokens[node] + 1 + data.draw(st.integers(0, VOCAB - 2))) % VOCAB
    after = tree_logits(session, len(PREFIX), tree)
    touched = tree.ancestors()[:, node]
    assert (before[~touched] == after[~touched]).all()
    assert (before[node] != after[node]).any()


@given(tree=trees(), data=st.data())
@settings(max_examples=40)
def test_after_a_graft_the_cache_is_that_of_sequential_decoding(
    session: CpuSession, tree: TokenTree, data: st.DataObject
) -> None:
    path = tree.path(data.draw(st.integers(0, len(tree) - 1)))
    commit(session, PREFIX)
    tree_logits(session, len(PREFIX), tree)
    end = len(PREFIX) + len(path)
    session.store(path, range(len(PREFIX), end))
    grafted = session.save(end)
    commit(session, [*PREFIX, *tree.tokens[path].tolist()])
    sequential = session.save(end)
    np.testing.assert_allclose(grafted.keys, sequential.keys, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(grafted.values, sequential.values, atol=1e-5, rtol=1e-5)


def test_pads_change_nothing(fixed: CpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows in a width of 8: whatever the pad rows hold, the three keep every bit."""
    commit(fixed, PREFIX)
    n = len(PREFIX)

    def logits() -> NDArray[np.float32]:
        rows = fixed.forward([1, 2, 3], [n, n + 1, n + 2], causal(n, 3))
        assert (rows.count, rows.width) == (3, 8)
        return np.stack([rows.logits(row) for row in range(3)])

    expected = logits()
    fill = fixed._fill

    def junk(width: int, *arguments: object) -> None:
        fill(width, *arguments)  # type: ignore[arg-type]
        fixed._staging.at(width).ids[0, 3:] = 319
        fixed._staging.at(width).cos[0, 0, 3:] = 1e3

    monkeypatch.setattr(fixed, "_fill", junk)
    assert (logits() == expected).all()


def test_scratch_slots_are_seen_only_through_the_mask(session: CpuSession) -> None:
    """A branch read back from scratch slots, a rejected sibling between them, gives its path's logits."""
    commit(session, PREFIX)
    n = len(PREFIX)
    session.forward([7, 8], [n, n], tree_visibility(n, np.eye(2, dtype=np.bool_)))
    session.store([0, 1], [n + 5, n + 2])
    seen = np.array([[True, False]])
    visible = Visibility(n, np.ones((1, 1), np.bool_), np.array([n + 5, n + 2], np.int32), seen)
    through_slots = session.forward([9], [n + 1], visible).logits(0)
    alone = session.forward([7, 9], [n, n + 1], causal(n, 2)).logits(1)
    np.testing.assert_allclose(through_slots, alone, atol=2e-4, rtol=0)


def test_move_compacts_in_place(session: CpuSession) -> None:
    commit(session, [*PREFIX, 1, 2, 3, 4])
    n, before = len(PREFIX), session.save(len(PREFIX) + 4)
    session.move([n + 1, n + 3], [n, n + 1])
    after = session.save(n + 2)
    assert (after.keys[..., n:] == before.keys[..., [n + 1, n + 3]]).all()
    assert (after.values[..., n:, :] == before.values[..., [n + 1, n + 3], :]).all()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ([7], [7]),
        ([7], [3]),
        ([5, 6, 7], [3, 4, 5]),
        ([5, 6, 7], [1, 3, 5]),
        ([3, 5, 7], [2, 3, 4]),
        ([3, 5, 8], [1, 5, 7]),
        ([4, 5, 6, 9], [4, 5, 6, 7]),
        ([], []),
    ],
)
def test_moves_that_overlap_read_what_was_there(bundle: Bundle, source: list[int], target: list[int]) -> None:
    session = CpuSession(bundle)
    commit(session, [*PREFIX, 1, 2, 3, 4])
    before = session.save(11)
    session.move(source, target)
    after = session.save(11)
    expected_keys, expected_values = before.keys.copy(), before.values.copy()
    for slot, place in zip(source, target, strict=True):
        expected_keys[..., place], expected_values[..., place, :] = (
            before.keys[..., slot],
            before.values[..., slot, :],
        )
    np.testing.assert_array_equal(after.keys, expected_keys)
    np.testing.assert_array_equal(after.values, expected_values)


def test_save_and_restore(bundle: Bundle) -> None:
    first, second = CpuSession(bundle), CpuSession(bundle)
    commit(first, PREFIX)
    second.restore(first.save(len(PREFIX)))
    n = len(PREFIX)
    a = first.forward([4], [n], causal(n, 1)).logits(0)
    assert (a == second.forward([4], [n], causal(n, 1)).logits(0)).all()


def test_a_reset_clears_what_an_overflow_left(session: CpuSession, fixed: CpuSession) -> None:
    """A masked column still takes part in a product: what a reset left would reach every later pass."""
    for place in (session, fixed):
        commit(place, PREFIX)
        expected = place.forward([4], [len(PREFIX)], causal(len(PREFIX), 1)).logits(0)
        saved = place.save(4)
        saved.keys[:], saved.values[:] = 3e38, 3e38
        place.restore(saved)
        with np.errstate(over="ignore", invalid="ignore"):
            place.forward([1], [4], causal(4, 1))
        place.store([0], [30])
        assert not np.isfinite(place.save(31).values).all()
        commit(place, PREFIX)
        assert (place.forward([4], [len(PREFIX)], causal(len(PREFIX), 1)).logits(0) == expected).all()
        assert not place.save(31).values[..., len(PREFIX) :, :].any()


def test_rows_are_refused_after_the_next_pass(session: CpuSession) -> None:
    commit(session, PREFIX)
    rows = session.forward([1], [7], causal(7, 1))
    session.forward([1], [7], causal(7, 1))
    with pytest.raises(DecodeError, match="another pass"):
        rows.logits(0)


def test_bad_requests_are_refused_in_words(session: CpuSession) -> None:
    commit(session, PREFIX)
    n = len(PREFIX)
    with pytest.raises(DecodeError, match="token 320 is outside the vocabulary"):
        session.forward([320], [n], causal(n, 1))
    with pytest.raises(DecodeError, match="beyond the context"):
        session.forward([1], [256], causal(n, 1))
    with pytest.raises(DecodeError, match="33 rows"):
        session.forward([1] * 33, range(33), causal(0, 33))
    with pytest.raises(DecodeError, match="slot 256 is beyond"):
        session.forward([1], [n], causal(257, 1))
    session.forward([1], [n], causal(n, 1))
    with pytest.raises(DecodeError, match="store of row 1"):
        session.store([1], [n])
    for rows, slots, words in (
        ([-1], [n], "store of row -1"),
        ([0], [-1], "negative slot"),
        ([0], [], "0 slots"),
    ):
        with pytest.raises(DecodeError, match=words):
            session.store(rows, slots)
    with pytest.raises(DecodeError, match="ascending"):
        session.move([n, n + 1], [n + 1, n + 2])


def test_topk_is_a_total_order(session: CpuSession) -> None:
    commit(session, PREFIX)
    n = len(PREFIX)
    rows = session.forward([1, 2], [n, n + 1], causal(n, 2))
    found = rows.topk(10)
    for row in range(2):
        logits = rows.logits(row).astype(np.float64)
        order = sorted(range(VOCAB), key=lambda token: (-logits[token], token))[:10]
        assert found.ids[row].tolist() == order
        assert found.log_sum[row] == pytest.approx(np.log(np.exp(logits).sum()), abs=1e-5)
