"""The lookup drafter and its suffix index, against brute force over the same tokens."""

from __future__ import annotations

import numpy as np
import pytest

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.lookup import Lookup, LookupKnobs
from hexgraft.host.drafters.suffix_index import SuffixIndex
from hexgraft.host.tree import TokenTree
from hexgraft.models.errors import UsageError

WIDE = Limits(16, 15, frozenset())


def shared(text: list[int], place: int, end: list[int]) -> int:
    """Tokens that text[..place] and `end` have in common, from the back."""
    count = 0
    while count < min(place + 1, len(end)) and text[place - count] == end[-1 - count]:
        count += 1
    return count


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, len(tree))}


@pytest.mark.parametrize("minimum", [1, 2, 3, 5, 16, 20])
def test_index_finds_what_brute_force_finds(minimum: int) -> None:
    rng = np.random.default_rng(minimum)
    for vocab in (2, 3, 8):
        index, text = SuffixIndex(4, minimum), []
        for _ in range(120):
            token = int(rng.integers(vocab))
            index.extend([token])
            text.append(token)
            end = text[-40:]
            found = {o.following: o.length for o in index.find(end, 1000, 40)}
            expected = {
                place + 1: shared(text, place, end)
                for place in range(len(text) - 1)
                if shared(text, place, end) >= minimum
            }
            assert set(found) <= set(expected)
            assert all(length == expected[place] for place, length in found.items())
            if len(text) <= 64:
                assert found == expected


def test_a_long_match_is_found_behind_many_short_ones() -> None:
    text = [7, 8, 9, 1, 2, 50] + [3, 1, 2, 60] * 400 + [7, 8, 9, 1, 2]
    lookup = Lookup()
    lookup.begin(text)
    tree = lookup.draft(text, WIDE)
    assert lookup.matched == 5
    assert tree.tokens[tree.children(0)[0]] == 50


def test_of_equal_matches_the_newer_goes_first() -> None:
    text = [1, 2, 5, 30, 1, 2, 9, 40, 1, 2]
    lookup = Lookup()
    lookup.begin(text)
    tree = lookup.draft(text, WIDE)
    assert [int(tree.tokens[child]) for child in tree.children(0)] == [9, 5]


def test_a_copied_passage_becomes_one_deep_chain() -> None:
    passage = list(range(100, 160))
    text = [*passage, 1, 2, 3, *passage[:10]]
    lookup = Lookup()
    lookup.begin(text)
    tree = lookup.draft(text, WIDE)
    assert tree.tokens.tolist() == passage[9:25]
    assert tree.depth == 15
    assert ((tree.probabilities[1:] > 0.9) & (tree.probabilities[1:] < 1)).all()


def test_the_drafter_follows_the_text_token_by_token() -> None:
    """Indexing piece by piece or all at once gives the same trees."""
    rng = np.random.default_rng(5)
    text = rng.integers(0, 6, 300).tolist()
    grown = Lookup()
    grown.begin(text[:10])
    for end in range(11, 300, 7):
        fresh = Lookup()
        fresh.begin(text[:end])
        one, other = grown.draft(text[:end], WIDE), fresh.draft(text[:end], WIDE)
        assert paths(one) == paths(other)
        assert np.array_equal(one.probabilities, other.probabilities)


def test_several_continuations_branch_and_the_frequent_one_leads() -> None:
    text = [20, 1, 2, 10, 21, 1, 2, 11, 22, 1, 2, 10, 23, 1, 2]
    lookup = Lookup(knobs=LookupKnobs(min_match=2))
    lookup.begin(text)
    tree = lookup.draft(text, WIDE)
    first = tree.tokens[list(tree.children(0))].tolist()
    assert first == [10, 11]
    assert tree.probabilities[1] > 0.5
    siblings = [tree.tokens[list(tree.children(node))].tolist() for node in range(len(tree))]
    assert all(len(set(tokens)) == len(tokens) for tokens in siblings)
    sums = [tree.probabilities[list(tree.children(node))].sum() for node in range(len(tree))]
    assert max(sums) < 1


def test_a_period_is_continued_past_the_end_of_the_text() -> None:
    text = [1, 2, 3, 1, 2, 3, 1]
    lookup = Lookup()
    lookup.begin(text)
    tree = lookup.draft(text, Limits(8, 7, frozenset()))
    assert tree.tokens.tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_corpus_is_used_kept_and_never_read_across_sequences() -> None:
    lookup = Lookup([[5, 6, 7], [8, 9, 5, 6]])
    for _ in range(2):
        lookup.begin([1, 5, 6])
        assert paths(lookup.draft([1, 5, 6], WIDE)) == {(7,)}
    lookup.begin([7, 8])  # 7 | 8 stand side by side only across the boundary
    assert len(lookup.draft([7, 8], WIDE)) == 1
    assert lookup.matched == 0


def test_begin_forgets_the_text_before() -> None:
    lookup = Lookup()
    lookup.begin([1, 2, 3, 1, 2])
    assert len(lookup.draft([1, 2, 3, 1, 2], WIDE)) > 1
    lookup.begin([1, 2])
    assert len(lookup.draft([1, 2], WIDE)) == 1


def test_stops_limits_and_thresholds_bound_the_tree() -> None:
    passage = list(range(100, 140))
    text = [*passage, 1, *passage[:9]]
    lookup = Lookup()
    lookup.begin(text)
    assert lookup.draft(text, Limits(16, 15, frozenset({111}))).tokens.tolist() == [108, 109, 110, 111]
    assert lookup.draft(text, Limits(16, 3, frozenset())).depth == 3
    assert len(lookup.draft(text, Limits(5, 15, frozenset()))) == 5
    assert len(lookup.draft(text, Limits(1, 0, frozenset()))) == 1
    strict = Lookup(knobs=LookupKnobs(min_prob=0.85))
    strict.begin(text)
    assert 1 < len(strict.draft(text, WIDE)) < 5
    with pytest.raises(UsageError, match="min_match 0"):
        LookupKnobs(min_match=0)


def test_memory_is_as_stated() -> None:
    index = SuffixIndex(100_000)
    index.extend(i * 7919 % 5003 for i in range(100_000))
    index.end_sequence()
    assert index.nbytes == 24 * 100_001 + 20 * (1 << 17)
    assert SuffixIndex(100_000, minimum=2).nbytes == 16 * (1 << 17)
