"""What a target is asked, as tokens: prompts that fit, whole. A part of one would lack its question, or the
turn of the assistant behind it, and the target would answer something else."""

from __future__ import annotations

from functools import lru_cache

from hexgraft.export.train.seeds import fixed_prompts
from hexgraft.host.bundle import Bundle
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import UsageError

_REMEMBERED = 4096
"""Prompts whose tokens are kept: more than a wave has."""


class Prompts:
    """Prompts of `room` tokens at the most, for the target of a bundle; `left_out` are the longer ones.
    `extra` are a user's. Raises UsageError where nothing of ours, or of the user's, fits."""

    def __init__(self, bundle: Bundle, room: int, extra: tuple[str, ...] = ()) -> None:
        self.room = room
        self.left_out: set[str] = set()
        self._codec = TextCodec(bundle)
        # Asked for by `fits` and again where a wave is written; prompts themselves never end.
        self.encode = lru_cache(_REMEMBERED)(self._encode)
        for ours in (fixed_prompts(), [prompt.text for prompt in LAB_PROMPTS]):
            if not any(map(self.fits, ours)):
                raise UsageError(
                    f"no prompt fits in the {room} tokens that answers leave for it", "use fewer --new-tokens"
                )
        if extra and not any(map(self.fits, extra)):
            none = f"none of the {len(extra)} prompts of" if extra[1:] else "no prompt of"
            raise UsageError(
                f"{none} --prompts fits in {room} tokens, with what the chat template adds",
                "shorten them, or leave out --prompts",
            )
        self.left_out.clear()

    def fits(self, message: str) -> bool:
        """Whether a prompt is short enough; else it is noted."""
        fits = len(self.encode(message)) <= self.room
        if not fits:
            self.left_out.add(message)
        return fits

    def _encode(self, message: str) -> list[int]:
        if not self._codec.has_template:
            return self._codec.encode_raw(message)
        return self._codec.encode_chat([{"role": "user", "content": message}])
