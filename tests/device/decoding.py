"""Decoding of one prompt, in this process or on a phone."""

from __future__ import annotations

from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session

PROMPT = [40, 51, 7, 260, 33, 12]


def decode(
    bundle: Bundle, target: Session, drafter: str = "lookup", draft: Session | None = None, heat: float = 0.0
) -> list[Round]:
    sampling = Sampling(temperature=heat, seed=5)
    options = DecodeOptions(max_tokens=50, tree_size=12, sampling=sampling)

    def open_draft() -> Session:
        assert draft is not None
        return draft

    decoder = Decoder(target, make_drafter(drafter, bundle, open_draft, sampling=sampling), options)
    decoder.begin(PROMPT)
    return list(decoder.rounds())


def tokens(rounds: list[Round]) -> list[int]:
    return [token for current in rounds for token in current.tokens]
