"""Decoding one token at a time: the reference for every cache."""

from __future__ import annotations

from collections.abc import Sequence

from hexgraft.host.session import Session, causal


def commit(session: Session, tokens: Sequence[int]) -> None:
    """Decode a sequence one token at a time into slots 0..n-1."""
    session.reset()
    for place, token in enumerate(tokens):
        session.forward([token], [place], causal(place, 1))
        session.store([0], [place])
