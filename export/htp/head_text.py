"""A draft head on a known text: what its rows go on from where nothing is drafted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hexgraft.export.htp.layers import float_runtime
from hexgraft.export.htp.network import Network
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Floats, HeadSession, Rows, States, prefill
from hexgraft.host.traces.replay import ForcedPass


def text_features(bundle: Bundle, tokens: Sequence[int], threads: int = 0) -> Floats:
    """What the fp32 target makes of each token of a text: its features [len(tokens), F]."""
    session = CpuSession(bundle, threads=threads, runtime=float_runtime(Network(bundle, "target"), threads))
    found: list[Floats] = []
    for _ in prefill(session, tokens, 0, len(tokens), lambda start, rows: found.append(rows.hiddens())):
        pass
    session.close()
    return np.concatenate(found)


class HeadText:
    """Feeds two sessions of a head the same text, for `replay`: position i holds token i + 1 and goes on from
    `features` [N, F] of position i.

    A tree's nodes but for the root go on from the head's own states, as when it drafts. No pass has given
    those of their parents, so that the states of the last rows before the tree stand in, each session's own.
    """

    def __init__(
        self, bundle: Bundle, reference: HeadSession, other: HeadSession, features: Floats, rows: int
    ) -> None:
        """`rows` is how many last rows' states are kept: the depth of the deepest tree at least."""
        model = bundle.model("draft")
        self._mixes = model.head is not None and model.head.feature_size > 0
        self._features, self._rows = features, rows
        self._sessions = (reference, other)
        self._states = [np.zeros((1, model.hidden), np.float32) for _ in self._sessions]

    def feed(self, forced: ForcedPass) -> None:
        """Before a pass."""
        depths = np.asarray(forced.positions) - forced.context
        own = depths > 0 if forced.phase == "tree" else np.zeros(len(depths), np.bool_)
        features = self._features[np.asarray(forced.positions)]
        for session, states in zip(self._sessions, self._states, strict=True):
            hidden = np.where(own[:, None], states[-np.minimum(np.maximum(depths, 1), len(states))], 0)
            given = np.where(own[:, None], 0, features).astype(np.float32)
            if self._mixes:
                session.feed(States(given, hidden.astype(np.float32)))
            else:
                rows = np.where(own[:, None], hidden, features).astype(np.float32)
                session.feed(States(np.empty((len(depths), 0), np.float32), rows))

    def watch(self, forced: ForcedPass, ours: Rows, theirs: Rows) -> None:
        """After a pass: keep what the rows of the text came to."""
        for number, rows in enumerate((ours, theirs)):
            fresh = rows.hiddens(list(forced.accepted))
            self._states[number] = np.concatenate((self._states[number], fresh))[-self._rows :]
