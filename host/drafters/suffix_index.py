"""An index of token sequences that finds where the end of a text has occurred before."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

_ORDERS = (16, 8, 4, 2, 1)
_END = -1
_VISITS = 64


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An earlier place of the text's end.

    `following` is the index of the token after it, `length` how many last tokens it shares.
    """

    following: int
    length: int


class SuffixIndex:
    """Hash chains over n-grams of 1, 2, 4, 8 and 16 tokens, as in LZ77 compressors.

    A bucket holds the newest position whose n-gram falls into it, and every position the one before. Found
    places are compared token by token, so a collision costs time and never a wrong answer. Chosen over a
    suffix automaton because appending is a handful of integer operations with no worst case, recency comes
    for free (a chain runs from new to old), and memory is flat arrays: 24 bytes a token and 20 a bucket at
    most, 5 MB at 100 000 tokens.

    `expected` tokens set the number of buckets; more may be added at the price of longer chains. Matches of
    less than `minimum` tokens are never asked for.
    """

    def __init__(self, expected: int, minimum: int = 1) -> None:
        bits = max(10, expected.bit_length())
        self._minimum = minimum
        self._orders = tuple(
            order
            for longer, order in zip((math.inf, *_ORDERS), _ORDERS, strict=False)
            if order >= minimum or longer > minimum
        )
        self.tokens = array("i")
        self._mask = (1 << bits) - 1
        self._heads = [array("i", [-1]) * (1 << bits) for _ in self._orders]
        self._older = [array("i") for _ in self._orders]
        self._start = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(a.itemsize * len(a) for a in (self.tokens, *self._heads, *self._older))

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the current sequence."""
        self.tokens.extend(iter(tokens))
        self._link(-1)

    def end_sequence(self) -> None:
        """No n-gram, match or continuation reaches across this point."""
        for chain, older in enumerate(self._older):
            self._link(chain)
            older.append(-1)
        self.tokens.append(_END)
        self._start = len(self.tokens)

    def _link(self, chain: int) -> None:
        """Take into one chain what has come since the last time: most ends of a text have not occurred
        before, which that of the shortest n-grams alone tells."""
        order, heads, older = self._orders[chain], self._heads[chain], self._older[chain]
        text, mask, first = self.tokens, self._mask, self._start + order - 1
        for place in range(len(older), len(text)):
            if place < first:
                older.append(-1)
                continue
            bucket = crc32(text[place + 1 - order : place + 1]) & mask
            older.append(heads[bucket])
            heads[bucket] = place

    def find(self, end: Sequence[int], limit: int, longest: int) -> list[Occurrence]:
        """Up to `limit` places that share at least the minimum of a text's last tokens, counted up to
        `longest`.

        `end` holds those last tokens. Places found through long n-grams come first, newer before older. A
        place nothing follows is left out.
        """
        last, shortest = array("i", end[-_ORDERS[0] :]), self._orders[-1]
        place = self._heads[-1][crc32(last[-shortest:]) & self._mask]
        if place == len(self.tokens) - 1 >= 0:  # this end itself
            place = self._older[-1][place]
        if place < 0 or len(end) < shortest:
            return []
        found: dict[int, Occurrence] = {}
        for chain, (order, heads, older) in enumerate(
            zip(self._orders, self._heads, self._older, strict=True)
        ):
            if order > len(end):
                continue
            self._link(chain)
            place = heads[crc32(last[-order:]) & self._mask]
            for _ in range(_VISITS):
                if place < 0 or len(found) >= limit:
                    break
                if place + 1 not in found and self.at(place + 1) is not None:
                    length = self._shared(place, end, longest)
                    if length >= max(self._minimum, order):
                        found[place + 1] = Occurrence(place + 1, length)
                place = older[place]
        return list(found.values())

    def following(self, place: int, count: int) -> list[int]:
        """Up to `count` tokens from a place on, as far as its sequence goes."""
        tokens = self.tokens[place : place + count].tolist()
        return tokens[: tokens.index(_END)] if _END in tokens else tokens

    def at(self, place: int) -> int | None:
        """The token at a place; None where its sequence has ended."""
        token = self.tokens[place] if place < len(self.tokens) else _END
        return None if token == _END else token

    def _shared(self, place: int, end: Sequence[int], longest: int) -> int:
        text, length, last = self.tokens, 0, len(end) - 1
        bound = min(longest, len(end), place + 1)
        while length < bound and text[place - length] == end[last - length]:
            length += 1
        return length
