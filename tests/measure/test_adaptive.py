"""Trees that follow acceptance: never much slower than plain decoding, the same every time, and lossless."""

from __future__ import annotations

import pytest
from lab_pair import TOKENS, pace
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.adaptive import Adaptive
from hexgraft.host.drafters.base import NoDraft
from hexgraft.host.drafters.calibration import Calibration, Lesson
from hexgraft.host.drafters.ledger import BOUND, HORIZON
from hexgraft.host.drafters.sampled import Sampled
from hexgraft.host.lab.comparison import Transcript
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.measure.setting import Setting
from hexgraft.host.measure.trial import Trial, run_trial
from hexgraft.host.measure.tune import Guess, Search
from hexgraft.models.errors import UsageError

ALL = ("lookup", "levels", "chain", "best-first", "static", "lookup+levels")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def hopeless(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A draft that the target seldom agrees with."""
    return make_pair(tmp_path_factory.mktemp("hopeless"), noise=1.0)


@pytest.fixture(scope="module")
def hopeless_texts(hopeless: Bundle) -> list[Transcript]:
    """All lab prompts; what the target says does not depend on the pace."""
    return pace(hopeless, "flat").transcripts(LAB_PROMPTS)


def untaught(search: Search, setting: Setting, foreseen: float) -> Guess:
    """The setting kept to what pays, without a trial before it, tried on all of the search's texts."""
    guess = Guess(setting, Trial(setting), 0.0, foreseen)
    drafter = search.adaptive(guess)
    trial = run_trial(search.bench, Setting(setting.drafter, search.sizes[-1]), drafter)
    speed = search.costs.speed(trial)
    return Guess(setting, trial, speed, speed / search.plain, adaptive=True)


@pytest.mark.parametrize(("shape", "drafter"), [("flat", "lookup"), ("steep", "lookup"), ("steep", "levels")])
def test_no_lab_prompt_is_more_than_five_per_cent_slower(
    hopeless: Bundle, hopeless_texts: list[Transcript], shape: str, drafter: str
) -> None:
    """With a draft nobody would choose, and told it would be twice as fast. Texts have HORIZON tokens."""
    assert TOKENS >= HORIZON
    search = pace(hopeless, shape, draft=0.3).search(hopeless_texts)
    adapted = untaught(search, Setting(drafter, 16), 2.0)
    assert search.worst(adapted) <= 1 + BOUND + 1e-9
    assert len(adapted.trial.parts) == 30


@pytest.mark.parametrize("drafter", ALL)
def test_every_drafter_keeps_the_bound_and_the_gain(bundle: Bundle, drafter: str) -> None:
    for shape, share in (("flat", 0.8), ("steep", 0.7)):
        place = pace(bundle, shape)
        search = place.search(place.transcripts(LAB_PROMPTS[::6]))
        guess = search.guess(Setting(drafter, 8))
        adapted = search.adapted(guess)
        assert search.worst(adapted) <= 1 + BOUND + 1e-9
        assert adapted.speedup >= share * guess.speedup


def test_it_rests_and_tries_again(hopeless: Bundle, hopeless_texts: list[Transcript]) -> None:
    place = pace(hopeless, "flat", draft=0.3)
    search = place.search(hopeless_texts[:1])
    setting = Setting("levels", 8)
    drafter = search.adaptive(Guess(setting, Trial(setting), 0.0, 1.0))
    decoder = Decoder(place.target, drafter, DecodeOptions(max_tokens=150, tree_size=32))
    decoder.begin(hopeless_texts[0].prompt)
    passes = []
    for _ in decoder.rounds():
        passes.append(drafter.passes - sum(passes))
    idle = passes.index(0)
    assert any(passes[idle:]), "it never tried again"
    assert passes.count(0) > len(passes) / 2
    assert drafter.slowdown <= 1 + BOUND


def test_the_same_run_draws_the_same_trees_and_plain_tokens(bundle: Bundle) -> None:
    place = pace(bundle, "steep")
    search = place.search(place.transcripts(LAB_PROMPTS[:2]))
    guess = search.guess(Setting("lookup+levels", 8))
    prompt = search.bench.transcripts[1].prompt

    def run(drafter: Adaptive | NoDraft, size: int) -> list[tuple[tuple[int, ...], ...]]:
        decoder = Decoder(place.target, drafter, DecodeOptions(max_tokens=TOKENS, tree_size=size))
        decoder.begin(prompt)
        return [(tuple(r.tree.tokens.tolist()), r.tokens) for r in decoder.rounds()]

    drafter = search.adaptive(guess)
    first, second = run(drafter, 32), run(drafter, 32)
    assert first == second == run(search.adaptive(guess), 32)
    assert len({len(tree) for tree, _ in first}) > 1
    emitted = [token for _, tokens in first for token in tokens]
    assert emitted == [token for _, tokens in run(NoDraft(), 1) for token in tokens]


def test_sizes_follow_what_is_accepted(bundle: Bundle, hopeless: Bundle) -> None:
    means = []
    for each in (bundle, hopeless):
        place = pace(each, "flat")
        search = place.search(place.transcripts(LAB_PROMPTS[:2]))
        trial = untaught(search, Setting("levels", 8), 1.5).trial
        rows = sum(size * count for part in trial.parts for (size, _), count in part.target.items())
        means.append(rows / trial.rounds)
    assert means[0] > 1.5 * means[1]


def test_what_was_learned_before_is_where_it_begins() -> None:
    lesson = Lesson()
    lesson.add([(0.95, False)] * 50 + [(0.2, True)] * 200)
    fresh, taught = Calibration(), Calibration(lesson.shifts)
    assert fresh.correct(-0.05) == pytest.approx(-0.05)
    assert taught.correct(-0.05) < -1
    assert taught.correct(-1.6) > -0.1
    for _ in range(400):
        taught.learn(())
    assert taught.correct(-0.05) < -1


def test_drawn_children_cannot_be_cut(bundle: Bundle) -> None:
    place = pace(bundle, "flat")
    sampled = place.make(Setting("sampled", 8), lambda: place.draft)
    assert isinstance(sampled, Sampled)
    with pytest.raises(UsageError, match="cannot follow acceptance"):
        Adaptive(sampled, place.costs, [4, 8], 8)
