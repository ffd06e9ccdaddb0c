"""Verifiers by exact enumeration: the emitted tokens are distributed as the target's, whatever the draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from enumeration import Branch, law
from fake_session import FakeModel, FakeSession
from numpy.typing import NDArray
from table_session import TableSession

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Limits, NoDraft
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.sampled import Sampled, draw_children
from hexgraft.host.drafters.shape import AcceptanceTable
from hexgraft.host.randomness import Keyed, Source, Stream
from hexgraft.host.sampling import Distribution, History, Sampling, distribution
from hexgraft.host.session import causal
from hexgraft.host.tree import ROOT, Draws, Proposal, TokenTree, TreeBuilder
from hexgraft.host.verify import Match, Residual, accept_or_correct, make_verifier, sequoia, specinfer
from hexgraft.models.errors import DecodeError, UsageError

VOCAB = 5
RULES = {"specinfer": Draws.INDEPENDENT, "sequoia": Draws.DISTINCT}
Doubles = NDArray[np.float64]


def random_rows(rng: np.random.Generator, count: int) -> Doubles:
    """Random distributions; about a third of the entries are zero, some rows are points."""
    rows = rng.dirichlet(np.full(VOCAB, 0.7), size=count)
    keep = rng.random((count, VOCAB)) > 0.35
    keep[np.arange(count), rng.integers(VOCAB, size=count)] = True
    rows = np.where(keep, rows, 0) + 1e-9 * keep
    shares: Doubles = rows / rows.sum(axis=1, keepdims=True)
    return shares


def as_distribution(shares: Doubles) -> Distribution:
    ids = np.flatnonzero(shares)
    return Distribution(ids, np.log(shares[ids]))


def walk(tree: TokenTree, rule: Residual, target: Doubles) -> tuple[int, ...]:
    """The tokens one round emits, as the decode loop walks."""
    node, tokens = ROOT, []
    while True:
        verdict = rule.judge(tree, node, as_distribution(target[tree.tokens[node]]), len(tokens))
        tokens.append(verdict.token)
        if verdict.child is None:
            return tuple(tokens)
        assert tree.tokens[verdict.child] == verdict.token
        assert tree.parents[verdict.child] == node
        node = verdict.child


def completed(
    emitted: dict[tuple[int, ...], float], target: Doubles, length: int
) -> dict[tuple[int, ...], float]:
    """The law of the first `length` tokens: what a round did not emit is drawn from the target."""
    total: dict[tuple[int, ...], float] = {}
    for tokens, probability in emitted.items():
        if len(tokens) >= length:
            total[tokens[:length]] = total.get(tokens[:length], 0.0) + probability
            continue
        for token in np.flatnonzero(target[tokens[-1]]):
            longer = {(*tokens, int(token)): probability * float(target[tokens[-1], token])}
            for key, value in completed(longer, target, length).items():
                total[key] = total.get(key, 0.0) + value
    return total


def distance(law: dict[tuple[int, ...], float], root: int, target: Doubles, length: int) -> float:
    """Total variation between a law of token sequences and plain sampling."""
    plain = completed(
        {(int(t),): float(target[root, t]) for t in np.flatnonzero(target[root])}, target, length
    )
    return 0.5 * sum(abs(law.get(key, 0.0) - plain.get(key, 0.0)) for key in law.keys() | plain.keys())


def emitted_by_drafter(
    draws: Draws, name: str, draft: Doubles, target: Doubles, table: AcceptanceTable, limits: Limits
) -> dict[tuple[int, ...], float]:
    """Drafter and verifier together, each coin and draw of both enumerated."""
    session = TableSession(draft, shares=True, capacity=32)

    def decide(source: Branch) -> tuple[int, ...]:
        drafter = Sampled(DraftModel(session), draws, Sampling(temperature=1), table, lambda _: source)
        drafter.begin([0])
        return walk(drafter.draft([0], limits), Residual(name, draws, lambda _: source), target)

    return law(decide)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("batch", range(10))
def test_emitted_tokens_have_the_law_of_the_target(name: str, batch: int) -> None:
    """200 random pairs of distributions on random trees, drawn children included."""
    shapes = set()
    for case in range(20):
        rng = np.random.default_rng([batch, case, 1])
        draft, target = random_rows(rng, VOCAB), random_rows(rng, VOCAB)
        if case % 5 == 0:
            draft = target.copy()
        table = AcceptanceTable([sorted(rng.random(3).tolist(), reverse=True) for _ in range(2)])
        limits = Limits(int(rng.integers(2, 5)), int(rng.integers(1, 4)), frozenset())
        found = emitted_by_drafter(RULES[name], name, draft, target, table, limits)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        assert distance(completed(found, target, 3), 0, target, 3) <= 1e-9
        shapes.add((limits, tuple(sorted({len(tokens) for tokens in found}))))
    assert len(shapes) > 5


def one_node(
    children: Callable[[Source], Sequence[int]], proposal: Proposal, target: Doubles
) -> dict[tuple[int, ...], float]:
    """The law of the token emitted at a root whose children come from `children`."""
    ids = np.flatnonzero(target)

    def decide(source: Branch) -> tuple[int]:
        return (accept_or_correct(children(source), proposal, ids, target[ids], source)[0],)

    return law(decide)


def worst(rule: Callable[[Source, Proposal, int], Sequence[int]], draws: Draws) -> float:
    """The largest distance over 200 random pairs when `rule` makes the children, judged as `draws`."""
    most = 0.0
    for case in range(200):
        rng = np.random.default_rng([case, 2])
        draft, target = rng.dirichlet(np.full(VOCAB, 0.7)), rng.dirichlet(np.full(VOCAB, 0.7))
        proposal = Proposal(draws, np.arange(VOCAB), draft)
        found = one_node(lambda source, q=proposal: rule(source, q, 3), proposal, target)  # type: ignore[misc]
        most = max(most, distance(found, 0, target[None], 1))
    return most


def drawn(source: Source, proposal: Proposal, count: int) -> list[int]:
    return [token for token, _ in draw_children(proposal, count, source)]


def distinct(source: Source, proposal: Proposal, count: int) -> list[int]:
    return drawn(source, Proposal(Draws.DISTINCT, proposal.ids, proposal.probabilities), count)


def best(source: Source, proposal: Proposal, count: int) -> list[int]:
    return np.argsort(-proposal.probabilities)[:count].tolist()


def deduplicated(source: Source, proposal: Proposal, count: int) -> list[int]:
    return list(dict.fromkeys(drawn(source, proposal, count)))


def test_three_children_by_the_right_rules() -> None:
    assert worst(drawn, Draws.INDEPENDENT) <= 1e-9
    assert worst(drawn, Draws.DISTINCT) <= 1e-9


@pytest.mark.parametrize(("rule", "least"), [(distinct, 0.2), (best, 0.4), (deduplicated, 0.05)])
def test_the_enumeration_catches_wrong_rules(
    rule: Callable[[Source, Proposal, int], Sequence[int]], least: float
) -> None:
    assert worst(rule, Draws.INDEPENDENT) > least


def test_duplicate_siblings_are_judged_one_by_one() -> None:
    """Two draws of the same token: the second has its own coin, against the residual."""
    proposal = Proposal(Draws.INDEPENDENT, np.array([0, 1]), np.array([0.9, 0.1]))
    asked: list[float] = []

    class Rejecting:
        def coin(self, probability: float) -> bool:
            asked.append(probability)
            return False

        def draw(self, weights: Doubles) -> int:
            return int(weights.argmax())

    token, place = accept_or_correct([0, 0], proposal, np.array([0, 1]), np.array([0.3, 0.7]), Rejecting())
    assert (token, place) == (1, None)
    assert asked == [pytest.approx(1 / 3), 0.0]


def test_an_empty_residual_keeps_the_target() -> None:
    """Equal distributions cannot reject; should rounding do it, the token still is the target's."""

    class Rejecting:
        def coin(self, probability: float) -> bool:
            return False

        def draw(self, weights: Doubles) -> int:
            assert np.isfinite(weights).all()
            return int(weights.argmax())

    shares = np.array([0.25, 0.75])
    for draws in RULES.values():
        proposal = Proposal(draws, np.array([3, 4]), shares)
        assert accept_or_correct([4, 3], proposal, np.array([3, 4]), shares, Rejecting())[0] in (3, 4)


def test_a_zero_uniform_accepts_nothing_impossible() -> None:
    class Zero(Keyed):
        def _uniform(self) -> float:
            return 0.0

    zero = Zero(0, 0, Stream.VERIFY)
    for draws in RULES.values():
        proposal = Proposal(draws, np.arange(3), np.array([0.5, 0.5, 0.0]))
        token, place = accept_or_correct([0, 1], proposal, np.array([2]), np.array([1.0]), zero)
        assert (token, place) == (2, None)
    assert draw_children(Proposal(Draws.DISTINCT, np.arange(3), np.array([0, 1.0, 0])), 3, zero) == [(1, 1.0)]


def test_mismatched_trees_are_refused_before_and_while_decoding() -> None:
    model = FakeModel(vocab=8)
    session = FakeSession(model)
    ranked = Chain(DraftModel(FakeSession(model)))
    options = DecodeOptions(tree_size=4, sampling=Sampling(temperature=1))
    sampled = Sampled(DraftModel(FakeSession(model)), Draws.DISTINCT, options.sampling)
    for verifier, drafter in (
        (specinfer(0), ranked),
        (sequoia(0), Lookup()),
        (specinfer(0), sampled),
        (sequoia(0), Merge(Lookup(), sampled)),
    ):
        with pytest.raises(UsageError, match=f"the {verifier.name} verifier would be biased"):
            Decoder(session, drafter, options, verifier)
    Decoder(session, sampled, options, sequoia(0))
    Decoder(session, NoDraft(), options, specinfer(0))
    Decoder(session, sampled, options, Match(0))
    builder = TreeBuilder(0)
    builder.add(ROOT, 1, 0.5, "chain")
    with pytest.raises(UsageError, match="needs independent draws"):
        specinfer(0).judge(builder.build(), ROOT, as_distribution(np.array([0.5, 0.5])), 1)
    builder.propose(ROOT, Proposal(Draws.DISTINCT, np.arange(2), np.array([0.5, 0.5])))
    with pytest.raises(UsageError, match="needs independent draws"):
        specinfer(0).judge(builder.build(), ROOT, as_distribution(np.array([0.5, 0.5])), 1)
    with pytest.raises(UsageError, match="unknown verifier 'typical'"):
        make_verifier("typical", 0)
    with pytest.raises(UsageError, match="not ranked"):
        Sampled(DraftModel(session), Draws.RANKED, options.sampling)


def test_a_child_the_draft_cannot_draw_is_refused() -> None:
    proposal = Proposal(Draws.INDEPENDENT, np.array([1, 3]), np.array([0.0, 1.0]))
    for token in (1, 2, 9):
        with pytest.raises(DecodeError, match="probability 0"):
            accept_or_correct([token], proposal, np.array([3]), np.ones(1), Keyed(0, 0, Stream.VERIFY))


SMALL = FakeModel(vocab=5, gain=1.5)
BLUR = SMALL.noisy(0.6)
SOME = Sampling(temperature=0.9, top_k=4)


def decode_three(verifier: Residual, draws: Draws, seed: int) -> tuple[int, ...]:
    sampling = Sampling(temperature=SOME.temperature, top_k=SOME.top_k, seed=seed)
    drafter = Sampled(DraftModel(FakeSession(BLUR, capacity=16)), draws, sampling)
    options = DecodeOptions(max_tokens=3, tree_size=5, sampling=sampling)
    decoder = Decoder(FakeSession(SMALL, capacity=16), drafter, options, verifier)
    decoder.begin([1, 2])
    list(decoder.rounds())
    return tuple(decoder.tokens[2:])


def expected_three() -> dict[tuple[int, ...], float]:
    total: dict[tuple[int, ...], float] = {(): 1.0}
    session = FakeSession(SMALL, capacity=16)
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for tokens, probability in total.items():
            text = [1, 2, *tokens]
            rows = session.forward(text, range(len(text)), causal(0, len(text)))
            target = distribution(rows.logits(len(text) - 1), SOME, History())
            for token, share in zip(target.ids, target.probabilities(), strict=True):
                longer[(*tokens, int(token))] = probability * float(share)
        total = longer
    return total


def chi_square(make: Callable[[int], Residual], draws: Draws, count: int) -> tuple[float, int]:
    """Of whole runs over many seeds, on sequences of three tokens; rare ones are pooled."""
    expected = expected_three()
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(count):
        tokens = decode_three(make(seed), draws, seed)
        assert tokens in expected
        seen[tokens] = seen.get(tokens, 0) + 1
    pooled = {key: (key if share * count >= 8 else "rare") for key, share in expected.items()}
    cells: dict[object, list[float]] = {}
    for key, share in expected.items():
        cell = cells.setdefault(pooled[key], [0.0, 0.0])
        cell[0] += seen.get(key, 0)
        cell[1] += share * count
    return sum((have - want) ** 2 / want for have, want in cells.values()), len(cells) - 1


@pytest.mark.parametrize(("make", "draws"), [(specinfer, Draws.INDEPENDENT), (sequoia, Draws.DISTINCT)])
def test_whole_runs_over_many_seeds_have_the_law_of_the_target(
    make: Callable[[int], Residual], draws: Draws
) -> None:
    value, freedom = chi_square(make, draws, 2000)
    assert freedom > 20
    assert value < freedom + 4 * (2 * freedom) ** 0.5


def test_a_coin_that_shares_the_drafts_numbers_is_caught() -> None:
    """The keys of draft and verifier must differ: the same numbers for both bias the output."""

    def shared(seed: int) -> Residual:
        return Residual("specinfer", Draws.INDEPENDENT, lambda position: Keyed(seed, position, Stream.DRAFT))

    value, freedom = chi_square(shared, Draws.INDEPENDENT, 2000)
    assert value > freedom + 8 * (2 * freedom) ** 0.5


def test_runs_repeat_and_seeds_differ() -> None:
    runs = [decode_three(sequoia(seed), Draws.DISTINCT, seed) for seed in (1, 1, 2, 3, 4, 5)]
    assert runs[0] == runs[1]
    assert len(set(runs)) > 2
