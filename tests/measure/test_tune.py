"""Choosing a tree: predictions against runs on a virtual clock, and the choice against the whole grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from lab_pair import Pace, PaidDrafts, PaidRows, pace
from pair import make_pair
from shapes import shaped_profile

from hexgraft.host.bundle import Bundle
from hexgraft.host.drafters.ledger import Toll
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.measure import setting as settings
from hexgraft.host.measure.contest import Contender, Contest, Result
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.decision import Verdict, decide
from hexgraft.host.measure.probe import probe
from hexgraft.host.measure.profile import ModelTimes, Spread
from hexgraft.host.measure.setting import (
    CHEAP,
    Setting,
    beginnings,
    every_setting,
    fan_out,
    halfway,
    maker,
    neighbours,
    usable_drafters,
)
from hexgraft.host.measure.shaped import VirtualClock
from hexgraft.host.measure.tune import PAYS, Search
from hexgraft.host.measure.wrapped import Wrapped
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Rows, Session, Visibility

SIX = LAB_PROMPTS[::5]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid that can be run through in seconds."""
    monkeypatch.setattr(settings, "DEPTHS", (3, None))
    monkeypatch.setattr(settings, "FANS", (1, 3))


def verdict_of(place: Pace, search: Search, drafters: list[str]) -> Verdict:
    guesses = search.run(drafters, search.sizes)
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    contest = Contest(place.target, prompts, place.options, repeats=1, clock=place.clock)
    return decide(search, contest, guesses[:2], [search.adapted(guess) for guess in guesses[:2]])


@pytest.mark.parametrize(("shape", "temperature"), [("flat", 0.8), ("steep", 0.0)])
def test_predictions_are_what_runs_take(bundle: Bundle, coarse: None, shape: str, temperature: float) -> None:
    """Of the chosen setting, of another one, of the chosen one kept to what pays, and of plain decoding."""
    place = pace(bundle, shape, sampling=Sampling(temperature=temperature))
    search = place.search(place.transcripts(SIX[:2]))
    verdict = verdict_of(place, search, ["lookup", "levels"])
    assert verdict.plain.speed.median == pytest.approx(search.plain, rel=0.01)
    assert len(verdict.tried) == 4
    for guess, result in verdict.tried:
        assert result.speed.median == pytest.approx(guess.speed, rel=0.1)
        assert result.ratio.median == pytest.approx(guess.speedup, rel=0.1)
    assert [guess.adaptive for guess, _ in verdict.tried] == [False, False, True, True]
    assert verdict.choice.measured == pytest.approx(verdict.choice.predicted, rel=0.1)
    assert verdict.choice.temperature == temperature


def test_what_the_host_does_counts(bundle: Bundle) -> None:
    """Drafting, and the rows a walk fetches one by one, on a clock that only they and passes move."""
    profile = msgspec.structs.replace(
        shaped_profile("flat"), host_round=Spread.single(0.01), row=Spread.single(0.01)
    )
    place = Pace(bundle, profile)
    place.target = PaidRows(place.target, place.clock, 0.01)
    ours = place.make
    place.make = lambda setting, opened: PaidDrafts(ours(setting, opened), place.clock, 0.02)
    search = place.search(place.transcripts(SIX[:2]))
    guess = search.guess(Setting("lookup", 16))
    verdict = verdict_of(place, search, ["lookup"])
    assert guess.trial.drafting == pytest.approx(0.02, rel=0.01)
    assert verdict.plain.speed.median == pytest.approx(search.plain, rel=1e-3)
    for tried, result in verdict.fixed:
        assert result.speed.median == pytest.approx(tried.speed, rel=1e-3)
    for tried, result in verdict.kept:
        assert result.speed.median == pytest.approx(tried.speed, rel=0.05)
    without = replace(place.costs, row=0.0).speed(guess.trial)
    assert without > 1.05 * guess.speed


def test_a_probe_finds_what_the_table_does_not_know(bundle: Bundle) -> None:
    """Passes after drafting take longer here than those that were measured, as where caches went cold."""
    place = pace(bundle, "flat")
    search = place.search(place.transcripts(SIX[:4]))
    search.run(["lookup", "levels"], search.sizes)
    tables = search.ranking()
    place.target = PaidPasses(place.target, place.clock, 0.01)
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    contest = Contest(place.target, prompts, place.options, repeats=1, clock=place.clock)
    probe(search, contest)
    probed = search.ranking()
    verdict = decide(search, contest, probed[:2], [search.adapted(guess) for guess in probed[:2]])
    for guess, result in verdict.tried:
        assert result.speed.median == pytest.approx(guess.speed, rel=0.05)
        assert guess.speed < tables[0].speed
    # Every round of a model has a tree, few of a lookup have.
    assert search.beyond == pytest.approx({"levels": 0.01, "lookup": 0.01}, rel=0.1)


def test_a_machine_that_got_slower_is_foretold_as_it_is_now(bundle: Bundle) -> None:
    """All passes take 1.4 times what they took when the table was measured: speeds follow, ratios stay."""
    fast = shaped_profile("flat")

    def slower(model: ModelTimes) -> ModelTimes:
        passes = [
            msgspec.structs.replace(each, graph=Spread.single(1.4 * each.graph.median))
            for each in model.passes
        ]
        return msgspec.structs.replace(model, passes=passes)

    assert fast.draft is not None
    now = msgspec.structs.replace(fast, target=slower(fast.target), draft=slower(fast.draft))
    place = Pace(bundle, now)
    place.costs = Costs.of(fast)
    search = place.search(place.transcripts(SIX[:4]))
    before = search.run(["lookup", "levels"], search.sizes)[0]
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    contest = Contest(place.target, prompts, place.options, repeats=1, clock=place.clock)
    probe(search, contest)
    assert search.pace == pytest.approx(1.4, rel=0.01)
    after = search.ranking()
    assert after[0].setting == before.setting
    assert after[0].speedup == pytest.approx(before.speedup, rel=0.02)
    verdict = decide(search, contest, after[:2], [search.adapted(guess) for guess in after[:2]])
    assert verdict.plain.speed.median == pytest.approx(search.plain, rel=0.01)
    for guess, result in verdict.tried:
        assert result.speed.median == pytest.approx(guess.speed, rel=0.05)


def test_what_runs_best_kept_to_what_pays_is_chosen(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuned run is kept to what pays: the setting that is faster only as it is does not count."""
    place = pace(bundle, "flat")
    search = place.search(place.transcripts(SIX[:2]))
    guesses = [search.guess(setting) for setting in (Setting("lookup", 16), Setting("levels", 8, 2))]
    adapted = [search.adapted(guess) for guess in guesses]
    adapted[1].toll = Toll(asking=1.0)
    trees: list[tuple[int, int | None]] = []
    speeds = {guesses[0].title: 4.5, guesses[1].title: 2.25, adapted[0].title: 1.8, adapted[1].title: 2.1}

    def run(contest: Contest, contenders: Sequence[Contender]) -> tuple[Result, list[Result]]:
        trees.extend((each.options.tree_size, each.options.tree_depth) for each in contenders)
        found = [
            Result(each.title, Spread.single(speeds[each.title]), Spread.single(speeds[each.title] / 1.5))
            for each in contenders
        ]
        # Repeat by repeat plain decoding was slower than in the middle.
        return Result("plain", Spread.single(1.7), Spread.single(1.0)), found

    monkeypatch.setattr(Contest, "run", run)
    contest = Contest(place.target, [], place.options)
    verdict = decide(search, contest, guesses, adapted)
    assert verdict.place == 1
    assert verdict.choice.setting == guesses[1].setting
    assert (verdict.choice.measured, verdict.choice.speedup) == pytest.approx((2.25, 1.4))
    assert verdict.choice.prior == adapted[1].prior != adapted[0].prior
    assert verdict.choice.toll == adapted[1].toll != adapted[0].toll
    assert trees == [(16, None), (8, 2), (32, None), (32, 2)]
    speeds |= {guess.title: 0.99 * PAYS * 1.5 for guess in adapted}
    assert not decide(search, contest, guesses, adapted).pays


class PaidPasses(Wrapped):
    """`session`, every pass of several rows of which takes `seconds` more."""

    def __init__(self, session: Session, clock: VirtualClock, seconds: float) -> None:
        super().__init__(session)
        self._pay = partial(clock.pay, seconds)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        if len(tokens) > 1:
            self._pay()
        return self.session.forward(tokens, positions, visible)


@pytest.mark.parametrize("shape", ["flat", "steep"])
def test_the_choice_is_as_good_as_an_exhaustive_search(bundle: Bundle, coarse: None, shape: str) -> None:
    place = pace(bundle, shape)
    transcripts = place.transcripts(SIX[:1])
    climbed, whole = place.search(transcripts), place.search(transcripts)
    best = climbed.run(["lookup", "levels"], climbed.sizes)[0]
    grid = every_setting(["lookup", "levels"], whole.sizes)
    fastest = max(whole.guess(setting).speed for setting in grid)
    assert best.speed >= 0.97 * fastest
    assert len(climbed.guesses) < len(grid)


def test_trees_suit_the_table(bundle: Bundle, coarse: None) -> None:
    """Where passes cost the same whatever their width, trees get wide; where they do not, narrow."""
    chosen = {}
    for shape in ("flat", "steep"):
        place = pace(bundle, shape)
        search = place.search(place.transcripts(SIX[:2]))
        chosen[shape] = search.run(["levels"], search.sizes)[0].setting.tree_size
    assert chosen["flat"] > chosen["steep"]


def test_plain_decoding_is_chosen_where_no_tree_pays(tmp_path: Path) -> None:
    place = pace(make_pair(tmp_path, noise=2.0), "steep", draft=0.9)
    search = place.search(place.transcripts(SIX[:1]))
    guess = search.guess(Setting("levels", 4, 2))
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    contest = Contest(place.target, prompts, place.options, repeats=1, clock=place.clock)
    verdict = decide(search, contest, [guess], [search.adapted(guess)])
    assert not verdict.pays
    assert verdict.choice.setting is None
    assert max(result.ratio.median for _, result in verdict.tried) < PAYS


def test_acceptance_by_depth_and_rank_is_kept(bundle: Bundle) -> None:
    place = pace(bundle, "flat")
    search = place.search(place.transcripts(SIX[:2]))
    guess = search.guess(Setting("levels", 8))
    verdict = verdict_of(place, search, ["lookup"])
    assert sum(t.accepted for t in guess.trial.by_depth) == guess.trial.tokens - guess.trial.rounds
    assert guess.trial.by_rank[0].rate > guess.trial.by_rank[1].rate
    assert verdict.choice.by_depth
    assert all(accepted <= tried for accepted, tried in verdict.choice.by_rank)


def test_two_drafters_in_one_tree_have_more_to_vary(bundle: Bundle, coarse: None) -> None:
    place = pace(bundle, "steep")
    search = place.search(place.transcripts(SIX[:1]))
    search.run(["lookup+levels"], search.sizes)
    tried = {setting.options for setting in search.guesses if setting.drafter == "lookup+levels"}
    assert {(), CHEAP} <= tried
    assert any(option.startswith("enough=") and option != "enough=1" for words in tried for option in words)
    assert any(option in ("depth=2", "depth=3") for words in tried for option in words)
    assert all(list(words) == sorted(words) for words in tried), "the same setting twice"
    assert beginnings("lookup+levels") == [(), CHEAP]
    assert beginnings("levels") == beginnings("lookup") == [()]


@pytest.mark.parametrize("padded", [True, False])
def test_sizes_between_widths_are_tried_where_passes_are_not_padded(
    bundle: Bundle, coarse: None, padded: bool
) -> None:
    place = pace(bundle, "steep")
    search = place.search(place.transcripts(SIX[:1]))
    search.costs.target.padded = padded
    search.run(["lookup"], search.sizes)
    tried = {setting.tree_size for setting in search.guesses}
    assert halfway([2, 4, 8, 16]) == [2, 3, 4, 6, 8, 12, 16]
    assert tried == set(search.sizes if padded else halfway(search.sizes))


def test_settings_around_one() -> None:
    around = neighbours(Setting("levels", 8), [4, 8, 16])
    assert Setting("levels", 8) not in around
    assert Setting("levels", 16) in around
    assert Setting("levels", 8, 3) in around
    assert Setting("levels", 8, None, ("top_k=2",)) in around
    assert Setting("levels", 8) in neighbours(Setting("levels", 8, None, ("top_k=2",)), [8])
    assert fan_out("best-first") == "max_fan_out"
    assert fan_out("lookup") is None
    words = Setting("levels", 8, 3, ("top_k=2",)).arguments()
    assert words == [
        "--draft", "levels", "--tree-size", "8", "--tree-depth", "3", "--draft-option", "top_k=2"
    ]  # fmt: skip


def test_drafters_are_taken_from_the_registry(bundle: Bundle, tmp_path: Path) -> None:
    place = pace(bundle, "flat")
    found = usable_drafters(place.make, lambda: place.draft)
    assert {"lookup", "chain", "best-first", "levels", "static", "lookup+levels"} <= set(found)
    assert not {"none", "sampled"} & set(found)
    alone = maker(make_pair(tmp_path, noise=None), Sampling())
    assert usable_drafters(alone, no_draft) == ["lookup", "chain"]


def no_draft() -> Session:
    raise AssertionError("a draft was opened")


def test_costs_add_up() -> None:
    costs = Costs.of(shaped_profile("steep"))
    assert costs.catch_up(0, 0) == 0
    assert costs.catch_up(40, 0) == pytest.approx(costs.pass_of_draft(32, 0) + costs.pass_of_draft(8, 0))
    assert costs.plain(0) == pytest.approx(0.05)


def test_static_trees_are_shaped_by_what_was_measured(bundle: Bundle, coarse: None) -> None:
    place = pace(bundle, "flat")
    search = place.search(place.transcripts(SIX[:1]))
    search.run(["static"], [8])
    shaped = [guess for guess in search.guesses.values() if guess.setting.options]
    assert shaped
    words = shaped[0].setting.options[0]
    rates = [float(rate) for rate in words.removeprefix("table=").split(",")]
    measured = search.guesses[Setting("static", 8)].trial.by_rank
    assert rates[0] == pytest.approx(measured[0].rate, abs=0.01)
