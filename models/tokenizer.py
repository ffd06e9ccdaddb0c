"""What a tokenizer must satisfy, which of its tokens end a generation, and how two vocabularies compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer

from hexgraft.models.errors import CheckpointError

DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>")
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")


def load_tokenizer(tokenizer_json: str, where: str, hint: str = "download it again") -> Tokenizer:
    """The `tokenizers` object of a tokenizer.json; a malformed one raises CheckpointError naming `where`."""
    try:
        return Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{where} is not a tokenizer the tokenizers library reads: {error}", hint
        ) from error


def ordered_tokens(tokenizer: Tokenizer) -> list[tuple[int, str]]:
    """Every (id, token), added tokens included, by id."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return sorted((number, token) for token, number in vocabulary.items())


def vocab_hash(tokenizer: Tokenizer) -> str:
    """sha256 over the tokens in order of their ids; equal exactly if `first_difference` is None."""
    digest = hashlib.sha256()
    for number, token in ordered_tokens(tokenizer):
        digest.update(json.dumps([number, token]).encode())
    return digest.hexdigest()


def first_difference(tokenizer_a: str, tokenizer_b: str) -> tuple[int, str | None, str | None] | None:
    """The lowest id whose token differs, with both tokens (None where one has no such id), or None."""
    a, b = (dict(ordered_tokens(load_tokenizer(each, "tokenizer"))) for each in (tokenizer_a, tokenizer_b))
    for number in sorted(a.keys() | b.keys()):
        if a.get(number) != b.get(number):
            return number, a.get(number), b.get(number)
    return None


def stop_tokens(
    named: Iterable[int], special: Mapping[str, int], chat_template: str | None
) -> tuple[int, ...]:
    """The tokens that end a generation, ascending.

    `named` are those the checkpoint names itself. To these come, out of the special tokens (text to id), the
    ends of a document, and the ends of a turn that the chat template writes: checkpoints often name only one.
    """
    stops = set(named)
    stops.update(special[text] for text in DOCUMENT_ENDS if text in special)
    template = chat_template or ""
    stops.update(special[text] for text in TURN_ENDS if text in special and text in template)
    return tuple(sorted(stops))


def require_ids(ids: Iterable[int], vocab: int, where: str) -> None:
    """Raise CheckpointError if a token id lies outside the model's vocabulary."""
    outside = [number for number in ids if not 0 <= number < vocab]
    if outside:
        raise CheckpointError(
            f"{where} has token id {max(outside)}, but the model's vocabulary ends at {vocab - 1}",
            "tokenizer and config are of different models: download the checkpoint again, all of its files",
        )
