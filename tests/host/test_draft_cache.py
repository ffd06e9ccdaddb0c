"""The draft model's cache after every possible acceptance is what sequential decoding would have written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_session import FakeModel, FakeSession

from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.best_first import BestFirst, BestFirstKnobs
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.sampled import Sampled
from hexgraft.host.drafters.static import Static
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import causal
from hexgraft.host.tree import Draws, TokenTree

MODEL = FakeModel(seed=4)
TEXT = [7, 3, 9, 3, 9, 11, 3, 9, 11]
LIMITS = Limits(14, 5, frozenset())
WARM = Sampling(temperature=1.2, seed=5)

MAKERS: dict[str, Callable[[DraftModel], Drafter]] = {
    "chain": Chain,
    "best-first": lambda model: BestFirst(model, BestFirstKnobs(p_base=0.1, min_prob=0, early_stop=False)),
    "levels": lambda model: Levels(model, calibrated=False),
    "static": Static,
    "distinct": lambda model: Sampled(model, Draws.DISTINCT, WARM),
    "independent": lambda model: Sampled(model, Draws.INDEPENDENT, WARM),
    "merge": lambda model: Merge(Lookup(), Levels(model, calibrated=False), enough=99),
}


class Moving(FakeSession):
    """Puts a wrong slot in the place of the last one moved."""

    def move(self, source: list[int], target: range) -> None:  # type: ignore[override]
        if len(source) > 1 and source[-1] - 1 > source[-2]:
            source = [*source[:-1], source[-1] - 1]
        super().move(source, target)


def begun(name: str, session: FakeSession | None = None) -> tuple[Drafter, DraftModel, TokenTree]:
    model = DraftModel(session or FakeSession(MODEL, role="draft"))
    drafter = MAKERS[name](model)
    drafter.begin(TEXT)
    return drafter, model, drafter.draft(TEXT, LIMITS)


def cache_error(model: DraftModel, text: list[int]) -> float:
    """The largest difference between the cache and one computed in sequence."""
    plain = FakeSession(MODEL)
    plain.forward(text, range(len(text)), causal(0, len(text)))
    plain.store(range(len(text)), range(len(text)))
    assert isinstance(model.session, FakeSession)
    found, expected = model.session.save(model.committed), plain.save(model.committed)
    errors = [np.abs(found.keys - expected.keys).max(), np.abs(found.values - expected.values).max()]
    return float(np.max(errors))


@pytest.mark.parametrize("name", MAKERS)
def test_the_cache_follows_every_branch(name: str) -> None:
    """Every node of the tree in turn is the last accepted one: leftmost or not, from none to all."""
    _, _, tree = begun(name)
    assert len(tree) > 5
    lengths = set()
    for node in range(len(tree)):
        drafter, model, again = begun(name)
        assert np.array_equal(again.tokens, tree.tokens)
        path = tree.path(node)
        drafter.accept(again, path)
        accepted = [*TEXT, *tree.tokens[path[1:]].tolist()]
        assert len(TEXT) <= model.committed <= len(accepted)
        assert cache_error(model, accepted) < 1e-6
        lengths.add(len(accepted) - model.committed)

        text = [*accepted, 20]
        before = drafter.passes
        following = drafter.draft(text, LIMITS)
        assert model.committed == len(text)
        assert cache_error(model, text) < 1e-6
        # What the draft lacked rode in the first pass: the same passes as from a text begun afresh.
        fresh = MAKERS[name](DraftModel(FakeSession(MODEL)))
        fresh.begin(text)
        expected = fresh.draft(text, LIMITS)
        assert drafter.passes - before == fresh.passes
        if name != "merge":  # it has learned from what was accepted, the fresh one has not
            assert np.array_equal(following.tokens, expected.tokens)
            assert np.array_equal(following.parents, expected.parents)
    assert lengths >= {0, 1}, "some accepted nodes were forwarded, some never"


def test_a_slot_moved_wrongly_is_found() -> None:
    errors = []
    for node in range(len(begun("levels")[2])):
        drafter, model, tree = begun("levels", Moving(MODEL))
        drafter.accept(tree, tree.path(node))
        errors.append(cache_error(model, [*TEXT, *tree.tokens[tree.path(node)[1:]].tolist()]))
    assert max(errors) > 0.01


def test_rounds_that_drafted_nothing_are_caught_up_in_one_pass() -> None:
    drafter, model, tree = begun("levels")
    drafter.accept(tree, [0])
    text = list(TEXT)
    for token in (4, 5, 6):
        text.append(token)
        assert len(drafter.draft(text, Limits(1, 0, frozenset()))) == 1
        drafter.accept(tree, [0])
    before = model.passes
    drafter.draft(text, Limits(2, 1, frozenset()))
    assert model.passes == before + 1
    assert cache_error(model, text) < 1e-6


def test_more_than_a_pass_can_hold_is_caught_up_in_several() -> None:
    model = DraftModel(FakeSession(MODEL, max_width=4))
    drafter = Levels(model)
    drafter.begin(TEXT)
    text = [*TEXT, *range(11)]
    drafter.draft(text, LIMITS)
    assert model.committed == len(text)
    assert cache_error(model, text) < 1e-6


@pytest.mark.parametrize("keep", [0, 4, 9, 100])
def test_a_new_text_keeps_no_more_than_it_shares(keep: int) -> None:
    drafter, model, tree = begun("levels")
    drafter.accept(tree, tree.path(len(tree) - 1))
    shared = min(keep, len(TEXT))
    text = [*TEXT[:shared], 40, 41, 42]
    drafter.begin(text, shared)
    assert model.committed == len(text) - 1
    assert cache_error(model, text) < 1e-6
