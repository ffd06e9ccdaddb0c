"""A draft model's cache: it follows the accepted branch, keeps drafted nodes in scratch slots, and catches
up.

Drafters that ask a language model for children share this; what tree they grow is their own affair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hexgraft.host.drafters.features import FeatureReader
from hexgraft.host.drafters.follow import Follow
from hexgraft.host.sampling import Distribution, History, Sampling, row_distribution
from hexgraft.host.session import Rows, Session, TopK, Visibility, causal, prefill
from hexgraft.host.tree import ROOT, Draws, TokenTree, TreeBuilder
from hexgraft.models.errors import DecodeError


class DraftModel:
    """Runs a draft session. Slots 0..committed-1 hold the text; drafted nodes stand in slots from there on.

    The draft lacks what the target decided alone: the bonus token always, and the last accepted node where
    it was never forwarded. These ride in the first pass of the next draft instead of a pass of their own.

    With `follow`, candidates are ranked as plain decoding under these options would choose among them:
    penalties along the path, and the very noise the target's draw will use. Without, by the draft's logits.
    """

    def __init__(self, session: Session, follow: Sampling | None = None) -> None:
        self.session = session
        self.committed = 0
        self.passes = 0
        self.rows = 0
        self._follow = Follow(follow) if follow and Follow.changes(follow) else None
        self._history = History()
        self._known = 0
        self._slots: dict[int, int] = {}
        self._next = 0

    @property
    def capacity(self) -> int:
        return self.session.spec.capacity

    @property
    def length(self) -> int:
        """Tokens of the text that are in the cache, or went before it."""
        return self.committed

    @property
    def reader(self) -> FeatureReader | None:
        """Who wants the target's features, where the draft is a head."""
        return None

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        """Prefill all tokens but the last, in passes of the widest graph. Not counted as draft passes.

        What the cache holds of the first `keep` tokens stays.
        """
        self.committed = min(keep, self.committed, len(tokens) - 1)
        if not self.committed:
            self.session.reset()
        self._history, self._known = History(tokens), len(tokens)
        self._forget()
        self._feed(tokens, min(len(tokens) - 1, self.capacity - 1))

    def room(self, tokens: Sequence[int], depth: int) -> int:
        """How deep a tree may grow before the draft's own context ends; negative if not even the root
        fits."""
        return min(depth, self.capacity - len(tokens))

    def start(self, tokens: Sequence[int], k: int) -> TopK:
        """Forward what the draft lacks and the root; the k best children of the root.

        `tokens` is the text so far, the root its last.
        """
        rows, row = self._root(tokens)
        if self._follow is None:
            return rows.topk(k, [row])
        return self._follow.rank(rows, [row], k, [self.length], [self._history])

    def expand(self, builder: TreeBuilder, nodes: Sequence[int], k: int) -> TopK:
        """Forward some nodes of the tree in one pass; the k best children of each, in the order of `nodes`.

        Every node's ancestors below the root must have been expanded before.
        """
        rows = self._nodes(builder, nodes)
        if self._follow is None:
            return rows.topk(k)
        positions = [self.length + builder.depths[node] for node in nodes]
        histories = [self._after(builder, node, self._follow.sampling) for node in nodes]
        return self._follow.rank(rows, range(len(nodes)), k, positions, histories)

    def start_distribution(self, tokens: Sequence[int], sampling: Sampling) -> Distribution:
        """As `start`, but the whole distribution of the root's child under `sampling`."""
        rows, row = self._root(tokens)
        return row_distribution(rows, row, sampling, self._history)

    def expand_distributions(
        self, builder: TreeBuilder, nodes: Sequence[int], sampling: Sampling
    ) -> list[Distribution]:
        """As `expand`, but the whole distributions of the nodes' children under `sampling`."""
        rows = self._nodes(builder, nodes)
        return [
            row_distribution(rows, row, sampling, self._after(builder, node, sampling))
            for row, node in enumerate(nodes)
        ]

    def free(self) -> int:
        """Scratch slots left."""
        return self.capacity - self._next

    def accept(self, path: Sequence[int]) -> None:
        """Graft: the accepted nodes that were forwarded move behind the committed text, in order.

        `path` holds builder nodes from the root on.
        """
        sources = []
        for node in path[1:]:
            if node not in self._slots:
                break
            sources.append(self._slots[node])
        self.session.move(sources, range(self.committed, self.committed + len(sources)))
        self.committed += len(sources)
        self._forget()

    def close(self) -> None:
        self.session.close()

    def _root(self, tokens: Sequence[int]) -> tuple[Rows, int]:
        """One pass over what the draft lacks; the root is its last row."""
        self._forget()
        if len(tokens) - self.committed > self.session.spec.max_width:
            self._feed(tokens, len(tokens) - 1)
        for token in tokens[self._known :]:
            self._history.append(token)
        self._known = len(tokens)
        missing = tokens[self.committed :]
        places = range(self.committed, len(tokens))
        rows = self._pass(missing, places, causal(self.committed, len(missing)))
        self.session.store(range(len(missing)), places)
        self.committed = self._next = len(tokens)
        return rows, len(missing) - 1

    def _nodes(self, builder: TreeBuilder, nodes: Sequence[int]) -> Rows:
        """One pass over nodes, stored in scratch slots; each sees the text, its ancestors and itself."""
        scratch = np.arange(self.committed, self._next, dtype=np.int32)
        seen = np.zeros((len(nodes), len(scratch)), dtype=np.bool_)
        for row, node in enumerate(nodes):
            parent = builder.parents[node]
            while parent != ROOT:
                seen[row, self._slots[parent] - self.committed] = True
                parent = builder.parents[parent]
        visible = Visibility(self.committed, np.eye(len(nodes), dtype=np.bool_), scratch, seen)
        positions = [self.committed - 1 + builder.depths[node] for node in nodes]
        rows = self._pass([builder.tokens[node] for node in nodes], positions, visible)
        for node in nodes:
            self._slots[node] = self._next
            self._next += 1
        self.session.store(range(len(nodes)), [self._slots[node] for node in nodes])
        return rows

    def _after(self, builder: TreeBuilder, node: int, sampling: Sampling) -> History:
        """The history a node's children are penalised by; copied only where it matters."""
        return self._history.after(builder.path(node)) if sampling.penalised else self._history

    def _feed(self, tokens: Sequence[int], end: int) -> None:
        for filled in prefill(self.session, tokens, self.committed, end):
            self.committed = filled

    def _pass(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        if not len(tokens):
            raise DecodeError("the draft model was asked for a pass without rows")
        self.passes += 1
        self.rows += len(tokens)
        return self.session.forward(tokens, positions, visible)

    def _forget(self) -> None:
        self._slots.clear()
        self._next = self.committed


class ModelDrafter:
    """What every drafter over a draft model does alike. Its tree's nodes are those it gave to the model."""

    draws: Draws | None = Draws.RANKED

    def __init__(self, model: DraftModel) -> None:
        self._model = model

    @property
    def reader(self) -> FeatureReader | None:
        return self._model.reader

    @property
    def passes(self) -> int:
        return self._model.passes

    @property
    def rows(self) -> int:
        return self._model.rows

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        self._model.begin(tokens, keep)

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._model.accept(path)

    def close(self) -> None:
        self._model.close()
