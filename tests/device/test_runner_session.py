"""The runner against the session in process: same logits, rows, cache, tokens and refusals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from pair import make_pair
from random_tree import random_tree

from hexgraft.export.writer import ExportOptions, write_manifest
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.logits import NotFinite
from hexgraft.host.manifest import JOINED_LAYOUT, KV_LAYOUT
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession, open_local_session
from hexgraft.host.runner.wire import RunnerError
from hexgraft.host.session import Session, Visibility, causal, tree_visibility
from hexgraft.models.attention import FUSED, STACKED
from hexgraft.models.errors import BundleError, DecodeError, UsageError

Pair = tuple[CpuSession, RunnerSession]
CONTEXT = 600


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle with fused attention, whose rows lie behind the cache's slots."""
    options = ExportOptions((1, 8, 16, 32), CONTEXT, attention=FUSED)
    return make_pair(tmp_path_factory.mktemp("fused"), options=options, context=CONTEXT)


@pytest.fixture(scope="module", params=["any", "fixed", "fused", "fused fixed"])
def pair(
    request: pytest.FixtureRequest, bundle: Bundle, fused: Bundle, runner: LocalRunner
) -> Iterator[Pair]:
    """Both sessions, at any width over a growing cache, and at fixed widths over the whole one."""
    fixed = request.param.endswith("fixed")
    bundle = fused if request.param.startswith("fused") else bundle
    widths = [1, 8, 16, 32] if fixed else None
    local = CpuSession(bundle, widths=widths, whole=fixed)
    remote = RunnerSession(runner.connection, str(bundle.path), widths=widths, whole=fixed)
    yield local, remote
    remote.close()


def assert_same_pass(
    pair: Pair, tokens: list[int], positions: list[int], visible: Visibility, *, k: int = 5
) -> None:
    local, remote = (session.forward(tokens, positions, visible) for session in pair)
    assert (remote.count, remote.width) == (local.count, local.width)
    ours, theirs = local.topk(k), remote.topk(k)
    np.testing.assert_array_equal(theirs.ids, ours.ids)
    np.testing.assert_allclose(theirs.logits, ours.logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(theirs.log_sum, ours.log_sum, rtol=0, atol=1e-5)
    for row in range(local.count):
        np.testing.assert_allclose(remote.logits(row), local.logits(row), rtol=0, atol=1e-5)


def test_specs_agree(pair: Pair) -> None:
    local, remote = pair[0].spec, pair[1].spec
    assert remote.provider == "runner"
    for name in (
        "role",
        "vocab",
        "layers",
        "kv_heads",
        "head_dim",
        "hidden",
        "capacity",
        "widths",
        "max_width",
    ):
        assert getattr(remote, name) == getattr(local, name), name


def test_trees_grow_the_same_cache(pair: Pair) -> None:
    """Passes over random trees, a random branch kept each time, past two growths of the cache."""
    rng = np.random.default_rng(1)
    committed = 0
    for session in pair:
        session.reset()
    while committed < 560:
        size = int(rng.integers(1, 33))
        mask, depths = random_tree(rng, size)
        tokens = rng.integers(0, 320, size).tolist()
        assert_same_pass(pair, tokens, [committed + d for d in depths], tree_visibility(committed, mask))
        branch = np.flatnonzero(mask[-1]).tolist()
        slots = range(committed, committed + len(branch))
        for session in pair:
            session.store(branch, slots)
        committed = slots.stop
    ours, theirs = pair[0].save(committed), pair[1].save(committed)
    np.testing.assert_allclose(theirs.keys, ours.keys, rtol=0, atol=1e-5)
    np.testing.assert_allclose(theirs.values, ours.values, rtol=0, atol=1e-5)


def test_scratch_slots_and_moves(pair: Pair) -> None:
    rng = np.random.default_rng(2)
    for session in pair:
        session.reset()
        session.forward([7, 8, 9, 10, 11], [0, 1, 2, 3, 4], causal(0, 5))
        session.store(range(5), range(5))
    for _ in range(5):
        slots = rng.choice(np.arange(2, 40), 11, replace=False)
        seen = rng.integers(0, 2, (4, 11)).astype(np.bool_)
        mask, depths = random_tree(rng, 4)
        visible = Visibility(5, mask, slots.astype(np.int32), seen)
        assert_same_pass(pair, [3, 1, 4, 1], [5 + d for d in depths], visible)
        for session in pair:
            session.store([3, 1], [20, 6])
            session.move([6, 20, 30], [5, 6, 30])
    np.testing.assert_allclose(pair[1].save(40).keys, pair[0].save(40).keys, rtol=0, atol=1e-5)


def test_rows_asked_for_one_by_one(pair: Pair) -> None:
    """As a verifier walks down a tree: what comes with the pass must be what asking would give."""
    rng = np.random.default_rng(3)
    for session in pair:
        session.reset()
    for size in (6, 6, 1, 6):
        mask, depths = random_tree(rng, size)
        tokens = rng.integers(0, 320, size).tolist()
        local, remote = (s.forward(tokens, depths, tree_visibility(0, mask)) for s in pair)
        for row in rng.permutation(size).tolist():
            for k, log_sum in ((1, False), (3, True), (2, False)):
                ours, theirs = local.topk(k, [row], log_sum=log_sum), remote.topk(k, [row], log_sum=log_sum)
                np.testing.assert_array_equal(theirs.ids, ours.ids)
                np.testing.assert_array_equal(np.isnan(theirs.log_sum), [not log_sum])
                np.testing.assert_allclose(theirs.log_sum, ours.log_sum, rtol=0, atol=1e-5)
        assert remote.topk(1000).ids.shape == local.topk(1000).ids.shape


def test_restore_is_the_inverse_of_save(pair: Pair) -> None:
    for session in pair:
        session.reset()
        tokens = list(range(20, 50))
        session.forward(tokens, range(30), causal(0, 30))
        session.store(range(30), range(30))
    saved = pair[1].save(30)
    for session in pair:
        session.reset()
        session.restore(saved)
    assert_same_pass(pair, [5, 6], [30, 31], causal(30, 2))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda s: s.forward([], [], causal(0, 0)),
        lambda s: s.forward([1] * 33, [0] * 33, causal(0, 33)),
        lambda s: s.forward([320], [0], causal(0, 1)),
        lambda s: s.forward([-1], [0], causal(0, 1)),
        lambda s: s.forward([1], [600], causal(0, 1)),
        lambda s: s.forward([1], [0, 1], causal(0, 1)),
        lambda s: s.forward([1], [0], causal(601, 1)),
        lambda s: s.store([2], [0]),
        lambda s: s.store([0], [600]),
        lambda s: s.store([0, 1], [0]),
        lambda s: s.move([3, 2], [0, 1]),
        lambda s: s.move([3], [4]),
        lambda s: s.move([600], [4]),
        lambda s: s.save(601),
    ],
)
def test_mistakes_are_the_same_errors(pair: Pair, mistake: Callable[[Session], object]) -> None:
    for session in pair:
        session.reset()
        session.forward([1, 2], [0, 1], causal(0, 2))
        with pytest.raises(DecodeError):
            mistake(session)
    assert_same_pass(pair, [5, 6], [0, 1], causal(0, 2))


def test_rows_that_see_later_ones_are_refused_in_the_same_words(fused: Bundle, runner: LocalRunner) -> None:
    remote = RunnerSession(runner.connection, str(fused.path))
    errors = []
    for session in (CpuSession(fused), remote):
        with pytest.raises(DecodeError, match="a row sees a later one") as refused:
            session.forward([1, 2], [1, 0], tree_visibility(0, np.ones((2, 2), np.bool_)))
        errors.append((refused.value.message, refused.value.hint))
    assert errors[0] == errors[1]
    remote.close()


def test_saved_rows_go_from_one_layout_to_the_other(
    bundle: Bundle, fused: Bundle, runner: LocalRunner
) -> None:
    plain, joined = (RunnerSession(runner.connection, str(one.path)) for one in (bundle, fused))
    plain.forward([5, 6, 7], range(3), causal(0, 3))
    plain.store(range(3), range(3))
    joined.restore(plain.save(3))
    assert_same_pass((CpuSession(bundle), joined), [9], [0], causal(0, 1))
    np.testing.assert_array_equal(joined.save(3).keys, plain.save(3).keys)
    np.testing.assert_array_equal(joined.save(3).values, plain.save(3).values)
    there, here = (session.forward([8], [3], causal(3, 1)).logits(0) for session in (joined, plain))
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-5)
    for session in (plain, joined):
        session.close()


@pytest.mark.parametrize(("made", "claimed"), [(FUSED, KV_LAYOUT), (STACKED, JOINED_LAYOUT)])
def test_a_graph_of_another_layout_is_refused_at_load(
    runner: LocalRunner, tmp_path: Path, made: str, claimed: str
) -> None:
    bundle = make_pair(tmp_path, noise=None, options=ExportOptions((1, 8), 64, attention=made))
    bundle.manifest.target.kv_layout = claimed
    write_manifest(bundle.manifest, bundle.path)
    with pytest.raises(BundleError, match="has not the shape of the bundle's cache layout"):
        RunnerSession(runner.connection, str(bundle.path))


def test_stale_rows_are_refused(pair: Pair) -> None:
    rows = pair[1].forward([1], [0], causal(0, 1))
    pair[1].forward([1], [0], causal(0, 1))
    with pytest.raises(DecodeError, match="gone"):
        rows.topk(1)
    with pytest.raises(DecodeError, match="no hidden"):
        pair[1].forward([1], [0], causal(0, 1)).hidden(0)


def test_target_and_draft_share_a_runner(bundle: Bundle, runner: LocalRunner) -> None:
    target = RunnerSession(runner.connection, str(bundle.path), "target")
    draft = RunnerSession(runner.connection, str(bundle.path), "draft")
    for role, session in (("target", target), ("draft", draft)):
        local = CpuSession(bundle, role)
        assert_same_pass((local, session), [5, 6, 7], [0, 1, 2], causal(0, 3))
    stats = draft.stats()
    assert {target.name, draft.name} <= set(stats["models"])
    assert stats["passes"][-1]["model"] == draft.name
    assert stats["memory"]["resident"] >= stats["memory"]["private"] > 0
    assert all(cores for cores in stats["affinity"].values())
    target.close()
    with pytest.raises(RunnerError, match="no such model"):
        target.forward([1], [0], causal(0, 1))
    draft.close()


def test_session_of_its_own_runner(bundle: Bundle, binary: Path) -> None:
    session = open_local_session(bundle, "draft", binary=binary, threads=1)
    assert session.loaded.threads == 1
    assert session.forward([1], [0], causal(0, 1)).topk(1).ids.shape == (1, 1)
    assert session._owner is not None
    process = session._owner.process
    session.close()
    assert process.returncode == 0


def test_loads_that_fail_say_why(bundle: Bundle, runner: LocalRunner, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no manifest"):
        RunnerSession(runner.connection, str(tmp_path))
    with pytest.raises(BundleError, match="no htp-sim graph"):
        RunnerSession(runner.connection, str(bundle.path), provider="htp")
    (tmp_path / "bundle.json").write_text("{}")
    with pytest.raises(BundleError, match="format"):
        RunnerSession(runner.connection, str(tmp_path))


def test_missing_runtime_is_told_at_load(bundle: Bundle, binary: Path, tmp_path: Path) -> None:
    runner = LocalRunner(binary, ort=tmp_path / "libonnxruntime.so")
    hello = runner.connection.hello
    assert hello.providers == []
    assert hello.error is not None
    assert hello.error.code == "no_runtime"
    with pytest.raises(RunnerError, match="cannot be loaded"):
        RunnerSession(runner.connection, str(bundle.path))
    runner.close()


def test_unknown_provider_is_a_usage_error(bundle: Bundle, binary: Path) -> None:
    with pytest.raises(UsageError, match="no provider"):
        open_local_session(bundle, provider="gpu", binary=binary)


def test_a_bundle_at_a_path_that_is_no_utf_8(bundle: Bundle, binary: Path, tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"odd-\xff")
    place.symlink_to(bundle.path)
    open_local_session(open_bundle(place), binary=binary).close()
    place.unlink()
    shutil.copytree(bundle.path, place)
    with pytest.raises(UsageError, match="takes paths in UTF-8 alone"):
        open_local_session(open_bundle(place), binary=binary)


def test_not_finite_logits(bundle: Bundle, runner: LocalRunner) -> None:
    """A cache of huge numbers overflows; the error is the one the decode loop degrades a round on."""
    session = RunnerSession(runner.connection, str(bundle.path))
    saved = session.save(4)
    saved.keys[:], saved.values[:] = 1e38, 1e38
    session.restore(saved)
    rows = session.forward([1, 2], [4, 5], causal(4, 2))
    assert not np.isfinite(rows.logits(0)).all()
    with pytest.raises(NotFinite):
        rows.topk(1)
    session.close()


def overflow(session: Session) -> None:
    """Leave keys and values in the cache that are not finite, as a pass that overflowed does."""
    session.reset()
    saved = session.save(4)
    saved.keys[:], saved.values[:] = 3e38, 3e38
    session.restore(saved)
    session.forward([1, 2], [4, 5], causal(4, 2))
    session.store([0, 1], [6, 9])
    assert not np.isfinite(session.save(10).values).all()


def test_a_text_after_one_that_overflowed(pair: Pair) -> None:
    """A masked column still takes part in a product: what a reset left there would reach every later pass."""
    for session in pair:
        session.reset()
        expected = session.forward([5, 6], [0, 1], causal(0, 2)).logits(1)
        overflow(session)
        assert not np.isfinite(session.forward([5, 6], [0, 1], causal(0, 2)).logits(1)).all()
        session.reset()
        assert (session.forward([5, 6], [0, 1], causal(0, 2)).logits(1) == expected).all()
        saved = session.save(10)
        assert not saved.keys.any()
        assert not saved.values.any()


def test_what_waited_is_told_though_a_row_failed(bundle: Bundle, runner: LocalRunner) -> None:
    """Operations before the one that failed were carried out, whether that one had to succeed or not."""
    session = RunnerSession(runner.connection, str(bundle.path))
    session.forward([1, 2], [0, 1], causal(0, 2)).topk(1)  # from now on rows come with such a pass
    overflow(session)
    session.forward([1, 2], [0, 1], causal(0, 2))
    told: list[dict[str, object]] = []
    session.later(session.operation("move", source=[0], target=[0]), told.append)
    rows = session.forward([1, 2], [0, 1], causal(0, 2))
    assert told == [{}]
    session.later(session.operation("move", source=[0], target=[0]), told.append)
    with pytest.raises(NotFinite):
        rows.topk(1, [0])
    assert told == [{}, {}]
    session.close()
