"""A conversation: its turns, and the tokens of the next prompt, made so that the cache of the last fits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from hexgraft.host.text import TextCodec


@dataclass(slots=True)
class Turn:
    """What was asked and what was answered; `tokens` are those of the reply's text, without a stop token."""

    question: str
    reply: str | None = None
    tokens: tuple[int, ...] | None = None


class Conversation:
    """Turns through a model's chat template. `stops` are the tokens that end an answer.

    Answers enter later prompts with the tokens the model wrote, not with their text encoded again: text has
    many encodings, and only these tokens are what the cache holds.
    """

    def __init__(self, codec: TextCodec, system: str | None = None, stops: Collection[int] = ()) -> None:
        self._codec = codec
        self._system = system
        self._stops = frozenset(stops)
        self.turns: list[Turn] = []

    def ask(self, text: str) -> None:
        """Begin a turn."""
        self.turns.append(Turn(text))

    def reply(self, text: str, emitted: Sequence[int]) -> None:
        """The answer to the last question: its text as shown, and all tokens emitted for it.

        Where the text is not that of the tokens, as after a stop string, the text counts.
        """
        turn = self.turns[-1]
        turn.reply = text
        written = emitted[:-1] if emitted and emitted[-1] in self._stops else emitted
        turn.tokens = tuple(written) if self._codec.decode(written) == text else None

    def undo(self) -> bool:
        """Take the last turn back; False if there is none."""
        return bool(self.turns) and self.turns.pop() is not None

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()

    def drop_oldest(self) -> bool:
        """Forget the oldest turn; False if only the last one is left."""
        return len(self.turns) > 1 and self.turns.pop(0) is not None

    def prompt(self) -> list[int]:
        """The tokens of the conversation up to where the next answer begins."""
        messages = self.messages()
        place, known = len(messages), {}
        for turn in reversed(self.turns):
            place -= 1
            if turn.reply is not None:
                if turn.tokens is not None:
                    known[place] = turn.tokens
                place -= 1
        return self._codec.encode_chat(messages, known)

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as chat templates and files have it."""
        messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            if turn.reply is not None:
                messages.append({"role": "assistant", "content": turn.reply})
        return messages
