"""What a search foretells of drafters kept to what pays, and what it takes into account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from lab_pair import Pace, PaidDrafts, pace
from pair import make_pair
from shapes import FLAT, shaped_profile, times

from hexgraft.host.bundle import Bundle
from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.calibration import Lesson
from hexgraft.host.drafters.wrapped import WrappedDrafter
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.measure.contest import Contest
from hexgraft.host.measure.probe import probe
from hexgraft.host.measure.setting import OpenDraft, Setting
from hexgraft.host.measure.trial import run_trial
from hexgraft.host.measure.tune import Search
from hexgraft.host.tree import TokenTree

SIX, LEVELS = LAB_PROMPTS[::5], Setting("levels", 8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


def paid_search(bundle: Bundle, seconds: float) -> Search:
    """A search in which every tree takes `seconds` to draft beside all passes."""
    place = pace(bundle, "flat", draft=0.3)
    ours = place.make
    place.make = lambda setting, opened: PaidDrafts(ours(setting, opened), place.clock, seconds)
    return place.search(place.transcripts(SIX[:2]))


def test_what_was_learned_of_probabilities_counts(bundle: Bundle) -> None:
    """The first trial teaches, the second is the one that is foretold."""
    place = pace(bundle, "steep")
    search, lesson = place.search(place.transcripts(SIX[:2])), Lesson()
    guess = search.guess(LEVELS)
    adapted = search.adapted(guess)
    taught = replace(guess, adaptive=True, prior=adapted.prior)
    largest = Setting("levels", search.sizes[-1])
    untaught, again = (
        run_trial(search.bench, largest, search.adaptive(*each)) for each in ((guess, lesson), (taught,))
    )
    assert adapted.prior == lesson.shifts
    assert any(adapted.prior)
    assert adapted.trial.parts == again.parts != untaught.parts
    assert adapted.speed == search.costs.speed(again)


def test_what_trees_take_beyond_the_table_counts_where_there_are_some(bundle: Bundle) -> None:
    """A drafter kept to what pays goes without a tree in some rounds."""
    search = paid_search(bundle, 0.002)
    guess = search.guess(LEVELS)
    assert search.adapted(guess).toll.drafted(2) == pytest.approx(0.002)
    search.beyond["levels"] = 0.004
    adapted = search.adapted(guess)
    assert adapted.toll.drafted(2) == pytest.approx(0.006)
    drafted = []
    for part in adapted.trial.parts:
        drafted.append(sum(seconds > 0.001 for seconds, _ in part.each))
        # Of many short times the longest are left out, and a mean stands for them.
        assert part.host == pytest.approx(0.006 * drafted[-1], abs=0.002)
    assert 0 < sum(drafted) < sum(part.rounds for part in adapted.trial.parts)


class Noted(WrappedDrafter):
    """Notes how many nodes are asked for."""

    def __init__(self, drafter: Drafter, notes: list[int]) -> None:
        super().__init__(drafter)
        self._notes = notes

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        self._drafter.begin(tokens, keep)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self._notes.append(limits.nodes)
        return self._drafter.draft(tokens, limits)

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._drafter.accept(tree, path)


def test_the_toll_is_that_of_large_and_of_small_trees(bundle: Bundle) -> None:
    place, asked = pace(bundle, "flat"), list[list[int]]()
    ours = place.make

    def make(setting: Setting, opened: OpenDraft) -> Drafter:
        asked.append([])
        return Noted(ours(setting, opened), asked[-1])

    place.make = make
    search = place.search(place.transcripts(SIX[:2]))
    guess = search.guess(Setting("lookup", 16))
    asked.clear()
    search.adapted(guess)
    large, small, again = asked
    assert max(large) == max(again) == search.sizes[-1]
    assert max(small) == search.sizes[0]


def test_what_a_probe_found_counts_for_settings_tried_after_it(bundle: Bundle) -> None:
    place = pace(bundle, "flat")
    search = place.search(place.transcripts(SIX[:2]))
    before = search.guess(Setting("lookup", 8)).trial
    search.add_to_trees("lookup", 0.01)
    for guess in (search.guess(Setting("lookup", 8)), search.guess(Setting("lookup", 16))):
        assert [part.host for part in guess.trial.parts] == [
            pytest.approx(0.01 * part.trees) for part in guess.trial.parts
        ]
        assert all(0 < part.trees < part.rounds for part in guess.trial.parts)
    assert not any(part.host for part in before.parts)


def test_a_probe_of_a_drafter_that_finds_nothing_ends(bundle: Bundle) -> None:
    """As a lookup in texts where nothing recurs: it has no tree that could take more than the table says."""
    place = pace(bundle, "flat")
    search = place.search(place.transcripts(SIX[:2]))
    guess = search.guess(Setting("lookup", 8, None, ("min_match=60",)))
    assert [part.trees for part in guess.trial.parts] == [0, 0]
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    probe(search, Contest(place.target, prompts, place.options, repeats=1, clock=place.clock))
    assert search.beyond == {"lookup": 0.0}
    assert search.adapted(guess).speedup == pytest.approx(1.0)


def test_no_tree_is_drafted_that_takes_the_host_more_than_may_be_lost(bundle: Bundle) -> None:
    search = paid_search(bundle, 0.2)
    guess = search.guess(LEVELS)
    assert guess.trial.drafting == pytest.approx(0.2, rel=0.01)
    assert all(part.tokens == part.rounds for part in search.adapted(guess).trial.parts)


def test_the_pace_is_that_of_the_texts_that_are_run(bundle: Bundle) -> None:
    """Every second one, which here are the short ones, where a long cache makes passes slow."""
    profile = msgspec.structs.replace(shaped_profile("flat"), target=times("t", 0.05, FLAT, growth=10.0))
    place = Pace(bundle, profile)
    texts = sorted(place.transcripts(SIX), key=lambda each: len(each.prompt))
    search = place.search([texts[0], texts[-1], texts[1], texts[-2]])
    search.run(["lookup", "levels"], [8])
    assert search.costs.plain_speed(texts[:2]) > 1.05 * search.plain
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    contest = Contest(place.target, prompts, place.options, repeats=1, clock=place.clock)
    for _ in range(2):
        search.beyond.clear()
        place.clock.pay(1.0)
        probe(search, contest)
        assert search.pace == pytest.approx(1.0, rel=0.01)
