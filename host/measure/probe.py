"""What a table cannot know, found by running a few texts: of rounds with trees, caches gone cold while
something else computed, messages that go with some drafters alone; of all, how fast the machine is by now."""

from __future__ import annotations

import math
from dataclasses import replace

from hexgraft.host.measure.contest import Contender, Contest
from hexgraft.host.measure.tune import Guess, Search

_LONG = 1.0
"""Seconds of plain decoding that a probe should last; shorter ones are repeated."""
_MOST = 40
"""Repeats at most."""
_EVERY = 2
"""One prompt in so many is probed; the others are foretold."""


def probe(search: Search, contest: Contest) -> None:
    """Run the best setting of each of the best drafters beside plain decoding, over every second prompt, and
    have what its trees take beyond the prediction count for all settings of that drafter; until the best are
    all drafters that have been run.

    Measured against plain decoding, whose rounds the table knows, so that a machine that slows down says
    nothing of trees; it is told by plain decoding's own speed, which scales all that is foretold.
    """
    texts = search.bench.transcripts[::_EVERY]
    plain = sum(search.costs.plain_seconds(text) for text in texts)
    repeats = min(_MOST, max(1, math.ceil(_LONG / plain)))
    part = replace(contest, prompts=contest.prompts[::_EVERY], repeats=repeats)
    while fresh := [
        guess for guess in search.best_of_drafters() if guess.setting.drafter not in search.beyond
    ]:
        now, results = part.run([contender(search, contest, guess) for guess in fresh])
        for guess, result in zip(fresh, results, strict=True):
            run = guess.trial.parts[::_EVERY]
            beyond = plain / result.ratio.median - sum(search.costs.seconds(one) for one in run)
            if trees := sum(one.trees for one in run):
                search.add_to_trees(guess.setting.drafter, beyond / trees)
            else:
                search.beyond.setdefault(guess.setting.drafter, 0.0)
        search.keep_pace(search.costs.plain_speed(texts) / now.speed.median)


def contender(search: Search, contest: Contest, guess: Guess) -> Contender:
    """A guess as it is run."""
    setting = guess.setting
    sized = replace(contest.options, tree_size=setting.tree_size, tree_depth=setting.tree_depth)
    return Contender(guess.title, search.make(setting, search.open_draft), sized)
