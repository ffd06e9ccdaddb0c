"""Text in, text out: a bundle's tokenizer, its chat template, and decoding as tokens arrive."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from hexgraft.host.bundle import Bundle
from hexgraft.models.chat import Message, render_chat
from hexgraft.models.errors import DecodeError
from hexgraft.models.tokenizer import load_tokenizer


class TextCodec:
    """The tokenizer of a bundle. Text of users never becomes a special token unless the prompt is raw."""

    def __init__(self, bundle: Bundle) -> None:
        entry = bundle.manifest.tokenizer
        file = bundle.file(entry.file)
        self._tokenizer: Tokenizer = load_tokenizer(file.read_text(encoding="utf-8"), str(file))
        self._entry = entry
        self._template = None
        if entry.chat_template is not None:
            self._template = bundle.file(entry.chat_template).read_text(encoding="utf-8")
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._specials = [token.content for token in added if token.special]

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def encode_raw(self, text: str) -> list[int]:
        """A prompt as it stands, special tokens in it understood, begun with the model's BOS exactly once."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._with_bos(ids)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """A conversation through the model's chat template, up to where the assistant answers.

        Where a message holds the text of a special token, that message is encoded apart, as plain text.
        """
        if self._template is None:
            raise DecodeError("this model has no chat template", "use --raw")
        contents = [str(message["content"]) for message in messages]
        if not any(special in content for special in self._specials for content in contents):
            rendered = render_chat(self._template, messages, self._entry.special)
            ids: list[int] = self._tokenizer.encode(rendered, add_special_tokens=False).ids
            return self._with_bos(ids)
        return self._with_bos(self._encode_apart(messages, contents))

    def _encode_apart(self, messages: Sequence[Message], contents: Sequence[str]) -> list[int]:
        """Render with a stand-in for every content, then put each back as text in which nothing is
        special."""
        tag = secrets.token_hex(8)
        marks = [f"\x02{tag}-{number}\x03" for number in range(len(contents))]
        masked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
        rest = render_chat(self._template or "", masked, self._entry.special)
        ids: list[int] = []
        for mark, content in zip(marks, contents, strict=True):
            before, found, after = rest.partition(mark)
            if not found:
                continue  # a template may leave a message out, as it would have with its text
            ids += self._tokenizer.encode(before, add_special_tokens=False).ids
            ids += self.encode_plain(content)
            rest = after
        return ids + self._tokenizer.encode(rest, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Text in which nothing is special, without BOS."""
        self._tokenizer.encode_special_tokens = True
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        finally:
            self._tokenizer.encode_special_tokens = False
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def token(self, token: int) -> str:
        """One token as it would show in a tree: its text, or its name where it has none."""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text if text and "\ufffd" not in text else str(self._tokenizer.id_to_token(token))

    def stream(self) -> TextStream:
        return TextStream(self._tokenizer)

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._entry.bos
        if bos is None or ids[:1] == [bos]:
            return ids
        return [bos, *ids]


class TextStream:
    """Turns tokens into text as they come, holding back bytes that do not form a character yet."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, tokens: Sequence[int]) -> str:
        return "".join(self._stream.step(self._tokenizer, token) or "" for token in tokens)
