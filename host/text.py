"""Text in, text out: a bundle's tokenizer, its chat template, and decoding as tokens arrive."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer

from hexgraft.host.bundle import Bundle, read_part, read_tokenizer
from hexgraft.models.chat import Message, render_chat
from hexgraft.models.errors import DecodeError, UsageError

_WINDOW = 4
"""Tokens that are decoded again with every new one; a character has at most four bytes."""


def check_text(text: str) -> None:
    """Raises UsageError for a string that no UTF-8 spells: arguments that are not text arrive as such."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a text is not UTF-8: it holds {text[error.start]!r}",
            "iconv -t UTF-8 converts a file; for arguments see `locale`",
        ) from error


class TextCodec:
    """The tokenizer of a bundle. Text of users never becomes a special token unless the prompt is raw."""

    def __init__(self, bundle: Bundle) -> None:
        entry = bundle.manifest.tokenizer
        file = bundle.file(entry.file)
        self._tokenizer: Tokenizer = read_tokenizer(file)
        self._entry = entry
        self._template = None
        if entry.chat_template is not None:
            self._template = read_part(bundle.file(entry.chat_template))
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._specials = [token.content for token in added if token.special]

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def encode_raw(self, text: str) -> list[int]:
        """A prompt as it stands, special tokens in it understood, begun with the model's BOS exactly once."""
        return self._with_bos(self._ids(text))

    def encode_chat(
        self, messages: Sequence[Message], known: Mapping[int, Sequence[int]] | None = None
    ) -> list[int]:
        """A conversation through the model's chat template, up to where the assistant answers.

        Where a message holds the text of a special token, that message is encoded apart, as plain text.
        `known` holds the tokens of some messages by their number, as the model wrote them. They are taken as
        they are if the template shows these messages unaltered, so that a cache of them stays of use.
        """
        if self._template is None:
            raise DecodeError("this model has no chat template", "use --raw")
        contents = [str(message["content"]) for message in messages]
        apart = {
            number: self.encode_plain(content)
            for number, content in enumerate(contents)
            if any(special in content for special in self._specials)
        }
        rendered = render_chat(self._template, messages, self._entry.special)
        if known:
            masked, marks = self._masked(messages, known)
            for number, mark in marks.items():
                masked = masked.replace(mark, contents[number])
            if masked == rendered:
                apart |= {number: list(tokens) for number, tokens in known.items()}
        if not apart:
            return self._with_bos(self._ids(rendered))
        return self._with_bos(self._encode_apart(messages, apart))

    def _encode_apart(self, messages: Sequence[Message], apart: Mapping[int, Sequence[int]]) -> list[int]:
        """Render with stand-ins for some messages, then put the tokens of each in its place."""
        rest, marks = self._masked(messages, apart)
        ids: list[int] = []
        for number, mark in marks.items():
            before, found, after = rest.partition(mark)
            if not found:
                continue  # a template may leave a message out, as it would have with its text
            ids += self._ids(self._without_space(before, str(messages[number]["content"]), apart[number]))
            ids += apart[number]
            rest = after
        return ids + self._ids(rest)

    def _without_space(self, before: str, content: str, tokens: Sequence[int]) -> str:
        """What comes before a message of these tokens: without the space a template writes there, where the
        first token has it already and `content` lost it as the beginning of a text."""
        twice = before.endswith(" ") and not content.startswith(" ") and tokens
        return before[:-1] if twice and self.token(tokens[0]).startswith(" ") else before

    def _masked(self, messages: Sequence[Message], numbers: Iterable[int]) -> tuple[str, dict[int, str]]:
        """The conversation rendered with a stand-in for the text of some messages, and these by number."""
        # Digits alone: a template that trims, escapes or changes case leaves them as they are.
        marks = {number: str(10**24 + secrets.randbelow(10**24)) for number in sorted(numbers)}
        masked = [
            {**message, "content": marks[number]} if number in marks else message
            for number, message in enumerate(messages)
        ]
        return render_chat(self._template or "", masked, self._entry.special), marks

    def encode_plain(self, text: str) -> list[int]:
        """Text in which nothing is special, without BOS."""
        self._tokenizer.encode_special_tokens = True
        try:
            return self._ids(text)
        finally:
            self._tokenizer.encode_special_tokens = False

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def token(self, token: int) -> str:
        """One token as it would show in a tree: its text, or its name where it has none."""
        # The second of two, as some decoders take a space off the token that begins a text.
        first: str = self._tokenizer.decode([token], skip_special_tokens=False)
        both: str = self._tokenizer.decode([token, token], skip_special_tokens=False)
        text = both.removeprefix(first)
        return text if text and "\ufffd" not in text else str(self._tokenizer.id_to_token(token))

    def stream(self, after: str = "") -> TextStream:
        """The text of tokens to come, which goes on where the text `after` ends."""
        return TextStream(self._tokenizer, self.encode_plain(after) if after else ())

    def _ids(self, text: str) -> list[int]:
        check_text(text)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._entry.bos
        if bos is None or ids[:1] == [bos]:
            return ids
        return [bos, *ids]


class TextStream:
    """Turns tokens into text as they come, holding back bytes that do not form a character yet.

    What was pushed, then `flush`, is what `TextCodec.decode` gives for all the tokens at once. A few tokens
    are decoded anew with each: some tokenizers write a token differently where it begins a text. `after` are
    tokens that went before, whose text has been given.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(after)
        self._given = len(self._decode(self._tokens))

    def push(self, tokens: Sequence[int]) -> str:
        return "".join([self._step(token) for token in tokens])

    def flush(self) -> str:
        """The bytes held back, as replacement characters."""
        rest = self._decode(self._tokens)[self._given :]
        self._given += len(rest)
        return rest

    def _step(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        whole = len(text.rstrip("\ufffd"))
        fresh = text[self._given : whole]
        self._given = max(self._given, whole)
        if whole == len(text) and len(self._tokens) > 4 * _WINDOW:
            shorter = self._decode(self._tokens[-_WINDOW:])
            if text.endswith(shorter):
                self._tokens, self._given = self._tokens[-_WINDOW:], len(shorter)
        return fresh

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
