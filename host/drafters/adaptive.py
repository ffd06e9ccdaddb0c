"""A drafter kept to what pays: the size of its trees follows what is accepted, down to none at all.

Decisions rest on counted acceptance and on a table of what passes cost, never on a clock, so that the same
run with the same table draws the same trees.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.calibration import Calibration, Lesson
from hexgraft.host.drafters.ledger import Ledger, Purse, RoundCosts, Trust
from hexgraft.host.drafters.wrapped import WrappedDrafter
from hexgraft.host.tree import ROOT, Draws, TokenTree, TreeBuilder, single
from hexgraft.models.errors import UsageError

_UNKNOWN = 0.5
"""Stands in for a probability where a drafter has none."""
PASSED, LOOKED = -1, 0
"""Rounds that ask for no tree: without a look at anything, and as a look showed that none may be drafted."""
_STAKE = 1.3
"""What a round may lose at least, if anything, times the smallest tree's loss: a tree takes some drafting."""


class PassCount(Protocol):
    """Counts a draft model's passes by (rows, fill)."""

    @property
    def passes(self) -> Mapping[tuple[int, int], int]: ...

    def clear(self) -> None: ...


@dataclass(slots=True)
class _Drafted:
    """The round under way: the drafter's own tree, which of its nodes went to the target, what drafting it
    cost."""

    fill: int
    plain: float
    asked: bool = False
    tree: TokenTree | None = None
    kept: Sequence[int] = (ROOT,)
    spent: float = 0.0
    known: int = 0


class Adaptive(WrappedDrafter):
    """Draws of `drafter` as much as pays by `costs`, in trees of one of `sizes`, at first of `start` nodes.

    A tree is cut to the nodes whose acceptance is worth their rows in the target's pass; likelihood is the
    drafter's, corrected by what the target has accepted. A draft model stops before a pass that costs more
    than it is expected to bring, and rests after rounds that lost. A text never gets more than BOUND slower
    than plain decoding by the table, one shorter than HORIZON tokens by more than HORIZON ones might; unless
    rounds that pass without a look alone take the host as much.
    `foreseen` is the speed expected against plain decoding, `prior` what other texts taught of the drafter's
    probabilities, and `lesson` learns that. `meter` counts the passes of the draft model if there is one,
    `knobs` are the parameters it was made with, NAME=VALUE, for a record of the run. Trees of drawn children
    cannot be cut without changing what the verifier draws.
    """

    def __init__(
        self,
        drafter: Drafter,
        costs: RoundCosts,
        sizes: Sequence[int],
        start: int,
        *,
        foreseen: float = 1.0,
        meter: PassCount | None = None,
        prior: Sequence[float] = (),
        lesson: Lesson | None = None,
        knobs: Sequence[str] = (),
    ) -> None:
        if drafter.draws is not Draws.RANKED:
            raise UsageError(
                f"trees of the drafter {drafter.name} cannot follow acceptance", "add --no-tuned, or --plain"
            )
        super().__init__(drafter)
        self._costs = costs
        self._sizes = sorted(sizes)
        self._first = bisect_left(self._sizes, start) if meter is not None else len(self._sizes) - 1
        self._aim = self._first = min(self._first, len(self._sizes) - 1)
        self._foreseen = max(1.0, foreseen)
        self._meter = meter
        self._prior = prior
        self._lesson = lesson
        self._calibration = Calibration(prior)
        self._trust = Trust()
        self._ledger = Ledger()
        self._last: _Drafted | None = None
        self._read = 0
        self._wait = self._rest = 0  # rounds without a look: till the ledger allows one, and by `Trust`
        self._passed = self._since = 0  # rounds that are not in the books yet, and where the first stood
        self.knobs = knobs
        self.drafted: list[list[int]] = []
        """Of each text, how many nodes were drafted in each round, the root counted, or LOOKED or PASSED."""

    @property
    def slowdown(self) -> float:
        """Seconds of this text by the table against those of plain decoding, 1 before the first round."""
        paid, plain = self._passed_by()
        plain += self._ledger.plain
        return (self._ledger.paid + paid) / plain if plain else 1.0

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        """As ever; only a text that goes on (`keep`) keeps what was learned, so that runs repeat."""
        self._settle()
        self._wait = 0
        if not keep:
            self._calibration, self._trust = Calibration(self._prior), Trust()
            self._aim, self._rest = self._first, 0
        self._ledger, self._last, self._read = Ledger(), None, len(tokens) - 1
        self.drafted.append([])
        self._drafter.begin(tokens, keep)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        fill, nodes = len(tokens) - 1, min(limits.nodes, self._sizes[self._aim])
        if self._wait or self._rest or nodes < 2 or limits.depth < 1:
            self._wait, self._rest = max(0, self._wait - 1), max(0, self._rest - 1)
            return self._plainly(tokens[-1], fill)
        self._settle()
        self._learn(tokens)
        plain, toll = self._costs.plain(fill), self._costs.toll
        self._last = last = _Drafted(fill, plain, known=len(tokens))
        self.drafted[-1].append(LOOKED)
        slack = self._ledger.slack(plain)
        least = self._loss(2, fill, plain) + self._first_pass(len(tokens) - self._read, fill)
        if slack < least:
            self._wait = self._ledger.wait(plain, least, toll) - 1
            return single(tokens[-1])
        # Half of what may be lost, so that one failure does not use up the chances of a text.
        slack = min(slack, max(slack / 2, _STAKE * least))
        token, left = self._ledger.worth(plain, self._foreseen), slack - least
        if toll.node:
            # Of a draft model half of what is left is for its passes.
            share = left / 2 if self._meter is not None else left
            nodes = min(nodes, 2 + int(min(nodes, share / toll.node)))
        purse = Purse(self._costs, fill, token, left - toll.node * (nodes - 2))
        tree = self._ask(last, tokens, Limits(nodes, limits.depth, limits.stops, purse))
        if len(tree) == 1:
            return tree
        last.kept = self._choose(tree, token, slack + plain - last.spent, fill)
        if self._meter is not None:
            self._follow(len(tree), len(last.kept))
        return _cut(tree, last.kept)

    def _ask(self, last: _Drafted, tokens: Sequence[int], limits: Limits) -> TokenTree:
        """The drafter's own tree. It costs what it costs, also where its logits are not finite."""
        last.asked = True
        if self._meter is not None:
            self._meter.clear()
        try:
            last.tree = self._drafter.draft(tokens, limits)
        finally:
            self.drafted[-1][-1] = nodes = len(last.tree) if last.tree is not None else 1
            last.spent = self._spent(len(tokens)) + self._costs.toll.drafted(nodes)
        return last.tree

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        last = self._last
        if last is None or self._passed:
            return
        toll = self._costs.toll
        if not last.asked:
            self._ledger.book(1, last.plain + toll.looking, last.plain)
            return
        more = range(1, len(path))
        plain = last.plain + sum(self._costs.plain(last.fill + step) for step in more)
        paid = last.spent + self._costs.verify(len(tree), last.fill)
        paid += len(more) * (self._costs.row + toll.token)
        if last.tree is None:
            pass  # the draft's logits were not finite: there is nothing to learn
        elif len(tree) == len(last.kept):
            self._drafter.accept(last.tree.showing(last.kept), [last.kept[node] for node in path])
        else:  # its logits were not finite, and the root went alone in a pass after it
            paid += self._costs.verify(len(last.kept), last.fill)
            self._drafter.accept(tree, path)
        if self._meter is not None and self._meter.passes:
            self._trust.learn(plain - paid)
            self._rest = self._trust.rest()
        self._ledger.book(len(path), paid, plain)

    def _plainly(self, token: int, fill: int) -> TokenTree:
        """A round without a look at anything: where passes are short, looking costs more than it may."""
        if not self._passed:
            self._since = fill
        self._passed += 1
        self.drafted[-1].append(PASSED)
        return single(token)

    def _settle(self) -> None:
        """Book the rounds that went by without a look."""
        rounds = self._passed
        if rounds:
            paid, plain = self._passed_by()
            self._ledger.rest(rounds, paid / rounds, plain / rounds)
            self._calibration.rest(rounds)
            self._passed = 0

    def _passed_by(self) -> tuple[float, float]:
        """Seconds of the rounds that are not in the books yet, and of as many plain ones."""
        rounds, last = self._passed, self._since + self._passed - 1
        if not rounds:
            return 0.0, 0.0
        plain = rounds * (self._costs.plain(self._since) + self._costs.plain(last)) / 2
        return plain + rounds * self._costs.toll.passing, plain

    def _loss(self, rows: int, fill: int, plain: float) -> float:
        """What a tree of `rows` loses if nothing of it is accepted, its draft passes left out."""
        return self._costs.verify(rows, fill) + self._costs.toll.drafted(rows) - plain

    def _first_pass(self, rows: int, fill: int) -> float:
        """The draft model's pass over the root and what it has not read yet."""
        return self._costs.catch_up(rows, fill) if self._meter is not None else 0.0

    def _spent(self, length: int) -> float:
        """Of the draft model's passes in a text of `length` tokens. What they read beyond the tokens that
        have come since the last ones is of the prompt, whose cost no tree can help."""
        if self._meter is None or not self._meter.passes:
            return 0.0
        unread, self._read = length - self._read, length
        passes, price = self._meter.passes, self._costs.pass_of_draft
        widest, at = max(passes)
        prompt = price(widest, at) - price(unread, at) if widest > unread else 0.0
        return sum(count * price(rows, fill) for (rows, fill), count in passes.items()) - prompt

    def _choose(self, tree: TokenTree, token: float, room: float, fill: int) -> Sequence[int]:
        """The nodes that pay: the likeliest ones, as many as bring most beyond what their pass costs; it may
        cost `room`."""
        logs = self._logs(tree)
        order = sorted(range(len(tree)), key=lambda node: (-logs[node], node))
        best, most, gain = 1, -math.inf, 0.0
        worth = token - self._costs.row - self._costs.toll.token
        for count in range(1, len(tree) + 1):
            gain += (share := math.exp(logs[order[count - 1]]))
            price = self._costs.verify(count, fill)
            if count > 1 and price > room:
                continue
            net = gain * worth - price
            if net > most + 1e-12:
                best, most = count, net
            elif (gain + (len(tree) - count) * share) * worth - price <= most:
                break  # if all the others were as likely as this one, and free, they would not pay
        return sorted(order[:best])

    def _logs(self, tree: TokenTree) -> list[float]:
        """By node, the log of how likely it is to be accepted."""
        logs, shares, parents = [0.0], tree.probabilities.tolist(), tree.parents.tolist()
        for node in range(1, len(tree)):
            share = _UNKNOWN if math.isnan(shares[node]) else shares[node]
            own = self._calibration.correct(math.log(share)) if share > 0 else -math.inf
            logs.append(logs[parents[node]] + own)
        return logs

    def _follow(self, drafted: int, kept: int) -> None:
        """Ask for the next larger tree after one that paid as a whole, for a smaller one if that had done;
        a tree that the drafter itself kept small says nothing."""
        below = self._sizes[self._aim - 1] if self._aim > 0 else 0
        if kept >= self._sizes[self._aim]:
            self._aim = min(self._aim + 1, len(self._sizes) - 1)
        elif 1 < kept <= below < drafted:
            self._aim -= 1

    def _learn(self, tokens: Sequence[int]) -> None:
        """Judge the whole of the last tree by the text that came, the nodes that were cut included."""
        last = self._last
        tree = last.tree if last is not None else None
        if last is None or tree is None:
            self._calibration.learn(())
            return
        trials: list[tuple[float, bool]] = []
        node = ROOT
        for token in tokens[last.known :]:
            right = tree.child(node, token)
            trials += [(float(tree.probabilities[c]), c == right) for c in tree.children(node)]
            if right is None:
                break
            node = right
        self._calibration.learn(trials)
        if self._lesson is not None:
            self._lesson.add(trials)


def _cut(tree: TokenTree, kept: Sequence[int]) -> TokenTree:
    """`tree` without the nodes that are not among `kept`, which holds every node's parent before it."""
    if len(kept) == len(tree):
        return tree
    tokens, parents, shares = tree.tokens.tolist(), tree.parents.tolist(), tree.probabilities.tolist()
    builder = TreeBuilder(tokens[ROOT])
    place = {ROOT: ROOT}
    for node in kept[1:]:
        place[node] = builder.add(place[parents[node]], tokens[node], shares[node], tree.sources[node])
    return builder.build()
