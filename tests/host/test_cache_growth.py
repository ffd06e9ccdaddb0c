"""A cache that grows with its text: the same rows, positions and logits as in one that is whole."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from pair import make_pair
from sequential import commit

from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle
from hexgraft.host.cache import COARSE, FEW, STEP, Cache
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.manifest import JOINED_LAYOUT
from hexgraft.host.session import causal, prefill
from hexgraft.host.staging import Staging
from hexgraft.models.attention import FUSED, STACKED
from hexgraft.models.errors import DecodeError

VOCAB = 320


@pytest.fixture(scope="module", params=[STACKED, FUSED])
def long(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose context is more than what a cache begins with; rows beside it, and behind its slots."""
    options = ExportOptions((1, 8, 32), 512, attention=request.param)
    bundle = make_pair(tmp_path_factory.mktemp("long"), noise=None, options=options)
    assert bundle.target.context > STEP + 32
    return bundle


@pytest.mark.parametrize("count", [STEP - 1, STEP, STEP + 1, 300])
def test_growth_keeps_the_cache_and_the_logits(long: Bundle, count: int) -> None:
    """A text that ends about where the cache grows: in a whole cache it has the same rows and logits."""
    growing, whole = CpuSession(long), CpuSession(long, whole=True)
    tokens = np.random.default_rng(3).integers(0, VOCAB, count).tolist()
    for place in (growing, whole):
        assert list(prefill(place, tokens, 0, count))[-1] == count
    a, b = (place.forward([4], [count], causal(count, 1)).logits(0) for place in (growing, whole))
    np.testing.assert_allclose(a, b, atol=2e-4, rtol=0)
    found, expected = growing.save(count), whole.save(count)
    np.testing.assert_allclose(found.keys, expected.keys, atol=1e-5)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)


def test_the_positions_of_slots_follow_their_rows(long: Bundle) -> None:
    """Windows are measured by them, so they must survive stores, moves, growth and saved copies."""
    model = long.target
    cache = Cache(model, STEP, width=32)
    staging = Staging(model)
    staging.grow(4)
    staging.keys[:] = staging.values[:] = 0
    places = np.array([7, 8, 8, 9], np.int32)
    cache.store(staging.at(4), places, np.array([0, 1, 3]), np.array([7, 8, 10]))
    assert cache.positions[[7, 8, 10]].tolist() == [7, 8, 9]
    cache.move(np.array([10]), np.array([9]))
    assert cache.positions[7:10].tolist() == [7, 8, 9]
    assert cache.grow(STEP + 1)
    assert cache.positions.shape == (cache.capacity,)
    assert cache.positions[7:10].tolist() == [7, 8, 9]
    cache.restore(cache.save(9))
    assert cache.positions[:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_steps_are_small_up_to_few_slots(long: Bundle) -> None:
    model = msgspec.structs.replace(long.target, layers=1, context=FEW + COARSE + 10)
    cache = Cache(model, STEP)
    sizes = []
    for slots in (STEP, STEP + 1, 3 * STEP, FEW - 1, FEW + 1, FEW + COARSE + 1):
        cache.grow(slots)
        sizes.append(cache.capacity)
    assert sizes == [STEP, 2 * STEP, 3 * STEP, FEW, FEW + COARSE, model.context]


@pytest.mark.parametrize("context", [FEW - STEP, FEW + 10, FEW + COARSE + 10])
def test_behind_the_slots_is_always_room_for_a_pass(long: Bundle, context: int) -> None:
    """And for no more than a whole cache, so that a small context takes little memory."""
    model = msgspec.structs.replace(long.target, layers=1, context=context)
    room = 32 if model.kv_layout == JOINED_LAYOUT else 0
    cache = Cache(model, STEP, width=32)
    for slots in range(1, context + 1):
        cache.grow(slots)
        assert cache.capacity + room <= cache.values.shape[2] <= context + room


def test_a_row_may_be_stored_behind_what_the_cache_has_grown_to(long: Bundle) -> None:
    session = CpuSession(long)
    session.forward([4, 5], [0, 1], causal(0, 2))
    session.store([0, 1], [STEP - 1, STEP])
    session.move([STEP - 1, STEP], [0, 1])
    found = session.save(2)
    commit(session, [4, 5])
    expected = session.save(2)
    np.testing.assert_allclose(found.keys, expected.keys, atol=1e-5)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)


def first_key(bundle: Bundle, token: int) -> NDArray[np.float32]:
    session = CpuSession(bundle, whole=True)
    commit(session, [token])
    return session.save(1).keys[..., 0]


def test_a_cache_with_room_grows_without_moving_and_leaves_zeros(long: Bundle) -> None:
    """What the rows of earlier passes left where slots are now would reach later passes if it overflowed."""
    session = CpuSession(long)
    joined = long.target.kv_layout == JOINED_LAYOUT
    before = session._cache.values.ctypes.data
    for count in (8, 4):
        session.forward([4, 5, 6, 7, 8, 9, 10, 11][:count], range(count), causal(0, count))
    session.store([1, 2], [0, STEP])
    session.store([3], [2 * STEP])
    assert session._cache.capacity == 3 * STEP
    assert (session._cache.values.ctypes.data == before) == joined
    saved, stored = session.save(3 * STEP), (0, STEP, 2 * STEP)
    for place in range(3 * STEP):
        assert saved.values[..., place, :].any() == saved.keys[..., place].any() == (place in stored)
    session.store([0], [1])
    commit(session, [4])
    np.testing.assert_allclose(session.save(1).keys[..., 0], first_key(long, 4), atol=1e-5)


def test_a_second_text_is_computed_as_the_first_was(long: Bundle) -> None:
    """To the bit, although the cache had grown in between: sums depend a little on the shapes."""
    session, first = CpuSession(long), CpuSession(long)
    text = np.random.default_rng(5).integers(0, VOCAB, 300).tolist()
    list(prefill(session, text[::-1], 0, 300))
    session.reset()
    with pytest.raises(DecodeError, match="store of row 0, the last pass had 0 rows"):
        session.store([0], [0])
    last = 300 % 32  # rows of the pass before, which has a binding to the larger cache
    again, once = (place.forward(text[:last], range(last), causal(0, last)) for place in (session, first))
    assert (again.logits(last - 1) == once.logits(last - 1)).all()
    with pytest.raises(DecodeError, match=f"save of {STEP + 1} slots, the cache has {STEP}"):
        session.save(STEP + 1)
    for place in (session, first):
        list(prefill(place, text, 0, 200))
    again, once = (place.forward([1], [200], causal(200, 1)).logits(0) for place in (session, first))
    assert (again == once).all()
