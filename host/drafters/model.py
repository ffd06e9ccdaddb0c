"""A draft model's cache: it follows the accepted branch, keeps drafted nodes in scratch slots, and catches up.

Drafters that ask a language model for children share this; what tree they grow is their own affair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hexgraft.host.session import Rows, Session, TopK, Visibility, causal
from hexgraft.host.tree import ROOT, TreeBuilder
from hexgraft.models.errors import DecodeError


class DraftModel:
    """Runs a draft session. Slots 0..committed-1 hold the text; drafted nodes stand in slots from there on.

    The draft lacks what the target decided alone: the bonus token always, and the last accepted node where it was
    never forwarded. These ride in the first pass of the next draft instead of a pass of their own.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.committed = 0
        self.passes = 0
        self.rows = 0
        self._slots: dict[int, int] = {}
        self._next = 0

    @property
    def capacity(self) -> int:
        return self.session.spec.capacity

    def begin(self, tokens: Sequence[int]) -> None:
        """Prefill all tokens but the last, in passes of the widest graph. Not counted as draft passes."""
        self.session.reset()
        self.committed = 0
        self._forget()
        self._feed(tokens, min(len(tokens) - 1, self.capacity - 1))

    def room(self, tokens: Sequence[int], depth: int) -> int:
        """How deep a tree may grow before the draft's own context ends; negative if not even the root fits."""
        return min(depth, self.capacity - len(tokens))

    def start(self, tokens: Sequence[int], k: int) -> TopK:
        """Forward what the draft lacks and the root; the k best children of the root.

        `tokens` is the text so far, the root its last.
        """
        width = self.session.spec.max_width
        self._forget()
        if len(tokens) - self.committed > width:
            self._feed(tokens, len(tokens) - 1)
        missing = tokens[self.committed :]
        rows = self._pass(missing, range(self.committed, len(tokens)), causal(self.committed, len(missing)))
        self.session.store(range(len(missing)), range(self.committed, len(tokens)))
        self.committed = len(tokens)
        self._next = self.committed
        return rows.topk(k, [len(missing) - 1])

    def expand(self, builder: TreeBuilder, nodes: Sequence[int], k: int) -> TopK:
        """Forward some nodes of the tree in one pass; the k best children of each, in the order of `nodes`.

        Every node's ancestors below the root must have been expanded before.
        """
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
        return rows.topk(k)

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

    def _feed(self, tokens: Sequence[int], end: int) -> None:
        width = self.session.spec.max_width
        while self.committed < end:
            chunk = tokens[self.committed : min(end, self.committed + width)]
            positions = range(self.committed, self.committed + len(chunk))
            self.session.forward(chunk, positions, causal(self.committed, len(chunk)))
            self.session.store(range(len(chunk)), positions)
            self.committed += len(chunk)

    def _pass(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        if not len(tokens):
            raise DecodeError("the draft model was asked for a pass without rows")
        self.passes += 1
        self.rows += len(tokens)
        return self.session.forward(tokens, positions, visible)

    def _forget(self) -> None:
        self._slots.clear()
        self._next = self.committed
