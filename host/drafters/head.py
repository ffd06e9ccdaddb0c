"""A draft head's cache: true target features for the text, its own states for drafted nodes.

A head reads a token together with what the target made of the position before it. So its rows are those of
the text from the second token on: row r is token r + 1 with the features of position r, and lies in slot r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hexgraft.host.bundle import Bundle
from hexgraft.host.drafters.features import HeadCache, Pending
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.head_tokens import HeadRows, head_tokens
from hexgraft.host.sampling import History, Sampling
from hexgraft.host.session import Floats, HeadSession, Rows, Session, States, causal
from hexgraft.host.tree import ROOT, TreeBuilder
from hexgraft.models.errors import UsageError


class HeadModel(DraftModel):
    """Runs a draft head as `DraftModel` runs a model. The target's features reach it through `read`.

    Rows drafted on the head's own states are never kept: the next draft's first pass reads the accepted
    tokens anew with the target's features, and the root with them.
    """

    def __init__(self, session: Session, bundle: Bundle, follow: Sampling | None = None) -> None:
        head = bundle.model("draft").head
        if head is None or not isinstance(session, HeadSession):
            raise UsageError(
                "this backend cannot run draft heads", "use --backend cpu, htp-sim, runner or device"
            )
        super().__init__(session, follow)
        self._head_session = session
        self._mixes = head.feature_size > 0
        self._width = bundle.model("draft").hidden
        self._tokens, self._vocab = head_tokens(bundle), bundle.target.vocab
        self.features = bundle.target.hidden_size
        """Numbers in a row of the features it reads."""
        self._pending = Pending(self.features)
        self._states: dict[int, Floats] = {}
        self._fresh: tuple[Rows, Mapping[int, int]] | None = None

    @property
    def reader(self) -> HeadModel:
        return self

    @property
    def length(self) -> int:
        return self.committed + 1

    def align(self, keep: int) -> int:
        """The next text shares its first `keep` tokens with the last one. Forgets what is of no use to it;
        returns how many of its tokens the target need not read again."""
        self.committed = max(0, min(self.committed, keep - 1))
        if not self.committed:
            self.session.reset()
        self._forget()
        if self._pending.covers(self.committed, keep):
            self._pending.keep(self.committed, keep)
            return keep
        self._pending.clear()
        return self.committed

    def read(self, tokens: Sequence[int], start: int, features: Floats) -> None:
        """The target's features of the positions from `start` on; `tokens` are the text as far as known.

        Whole passes of the widest graph are read at once, so that no more than one waits; not counted as
        draft passes.
        """
        self._pending.add(start, features)
        if self._pending.end > self.capacity:
            self._pending.clear()  # the text has outgrown the head, which drafts no more
            return
        width = self.session.spec.max_width
        while min(self._pending.end, len(tokens) - 2) - self.committed >= width:
            self._true_pass(tokens, self.committed + width)

    def save(self) -> HeadCache:
        """Its rows, and the features that wait behind them."""
        behind = self._pending.start == self.committed
        features = self._pending.rows if behind else np.empty((0, self.features), np.float32)
        return HeadCache(self.session.save(self.committed), features)

    def restore(self, cache: HeadCache) -> None:
        """Go on with a text that was saved."""
        self.session.reset()
        self._forget()
        self.session.restore(cache.rows)
        self.committed = cache.rows.count
        self._pending.clear()
        self._pending.add(self.committed, cache.features)

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        """A new text, after `align`; its features come through `read`."""
        self._history, self._known = History(tokens), len(tokens)
        self._forget()

    def room(self, tokens: Sequence[int], depth: int) -> int:
        """As ever; a text of one token has no features yet."""
        return min(depth, self.capacity - len(tokens) + 1) if len(tokens) > 1 else 0

    def accept(self, path: Sequence[int]) -> None:
        """Nothing moves: what was accepted is read anew."""
        self._forget()

    def _root(self, tokens: Sequence[int]) -> tuple[Rows, int]:
        self._forget()
        for token in tokens[self._known :]:
            self._history.append(token)
        self._known = len(tokens)
        width = self.session.spec.max_width
        while len(tokens) - 1 - self.committed > width:
            self._true_pass(tokens, self.committed + width)
        count = len(tokens) - 1 - self.committed
        self.passes += 1
        self.rows += count
        rows = self._true_pass(tokens, len(tokens) - 1)
        self._next = self.committed
        self._fresh = rows, {ROOT: count - 1}
        return self._mapped(rows), count - 1

    def _true_pass(self, tokens: Sequence[int], end: int) -> Rows:
        """Read rows up to `end` with the target's features and store them."""
        places = range(self.committed, end)
        features = self._pending.take(self.committed, end)
        if not self._mixes:
            self._head_session.feed(States(np.empty((len(places), 0), np.float32), features))
        else:
            self._head_session.feed(States(features, np.zeros((len(places), self._width), np.float32)))
        shown = tokens[self.committed + 1 : end + 1]
        rows = self.session.forward(shown, places, causal(self.committed, len(places)))
        self.session.store(range(len(places)), places)
        self.committed = end
        return rows

    def _nodes(self, builder: TreeBuilder, nodes: Sequence[int]) -> Rows:
        """As ever, each node going on from its parent's state."""
        self._keep_states()
        hidden = np.stack([self._states[builder.parents[node]] for node in nodes])
        size = self.features if self._mixes else 0
        self._head_session.feed(States(np.zeros((len(nodes), size), np.float32), hidden))
        rows = super()._nodes(builder, nodes)
        self._fresh = rows, {node: row for row, node in enumerate(nodes)}
        return self._mapped(rows)

    def _keep_states(self) -> None:
        """Fetch the last pass's states before the next one ends its rows."""
        if self._fresh is not None:
            rows, places = self._fresh
            found = rows.hiddens(list(places.values()))
            self._states.update(zip(places, found, strict=True))
            self._fresh = None

    def _mapped(self, rows: Rows) -> Rows:
        return rows if self._tokens is None else HeadRows(rows, self._tokens, self._vocab)

    def _forget(self) -> None:
        super()._forget()
        self._states.clear()
        self._fresh = None
