"""Whether a draft speaks the target's vocabulary, and the draft fitted to the target's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.checkpoint import Checkpoint, TokenizerFiles
from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.errors import ExportError
from hexgraft.models.tokenizer import load_tokenizer

LEAST_SHARED = 0.9
"""The part of the target's tokens a draft must know: with fewer it would draft next to nothing."""

_HINT = "take a draft of the same model family and tokenizer"


class FittedDraft:
    """A draft whose embedding and head have exactly `vocab` rows: others are cut, missing ones are zero.

    Rows beyond the shared tokens only pad a matrix or stand for tokens the other model lacks; a zero row
    embeds to nothing and is hardly ever the best of trained logits. Implements `Checkpoint`.
    """

    path: Path
    config: ModelConfig
    tokenizer: TokenizerFiles
    name: str
    origin: str
    license: str | None
    source_format: str
    notes: list[str]

    def __init__(self, draft: Checkpoint, vocab: int) -> None:
        self.inner = draft
        self.config = replace(draft.config, vocab=vocab)
        self.path, self.name, self.origin = draft.path, draft.name, draft.origin
        self.license = draft.license
        self.tokenizer, self.source_format, self.notes = draft.tokenizer, draft.source_format, draft.notes

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Row blocks of a tensor, as `Checkpoint.blocks`."""
        if name not in ("embed", "head"):
            yield from self.inner.blocks(name)
            return
        left, columns = tensor_shapes(self.config)[name]
        for block in self.inner.blocks(name):
            if not left:
                return
            yield block[:left]
            left -= len(block[:left])
        while left:
            count = min(left, 1024)
            yield np.zeros((count, columns), np.float32)
            left -= count


def fit_draft(target: Checkpoint, draft: Checkpoint) -> Checkpoint:
    """The draft as it may serve the target; `draft.notes` is told where the two vocabularies part.

    Tokens of the same id must be the same text, but for special tokens, and for ids only one of the two has.
    A draft may so have more or fewer rows than the target. Raises ExportError with the first token that
    differs.
    """
    ours, our_special = _tokens(target.tokenizer)
    theirs, their_special = _tokens(draft.tokenizer)
    renamed = []
    for number in sorted(ours.keys() & theirs.keys()):
        if ours[number] == theirs[number]:
            continue
        if number not in our_special or number not in their_special:
            raise ExportError(
                f"the draft has another vocabulary: token {number} is {theirs[number]!r} there and "
                f"{ours[number]!r} in the target",
                _HINT,
            )
        renamed.append(number)
    missing = sorted(ours.keys() - theirs.keys())
    if len(missing) > (1 - LEAST_SHARED) * len(ours):
        raise ExportError(
            f"the draft has another vocabulary: it lacks {len(missing)} of the target's {len(ours)} tokens, "
            f"the first is {missing[0]}, {ours[missing[0]]!r}",
            _HINT,
        )
    draft.notes += _notes(ours, theirs, renamed, missing)
    rows, wanted = draft.config.vocab, target.config.vocab
    if rows == wanted:
        return draft
    draft.notes.append(f"the draft's {rows} rows are {'cut' if rows > wanted else 'padded'} to {wanted}")
    return FittedDraft(draft, wanted)


def _tokens(tokenizer: TokenizerFiles) -> tuple[dict[int, str], set[int]]:
    """Token texts by id, and the ids of added tokens."""
    loaded = load_tokenizer(tokenizer.tokenizer_json, "tokenizer")
    tokens = {number: token for token, number in loaded.get_vocab(with_added_tokens=True).items()}
    return tokens, set(loaded.get_added_tokens_decoder())


def _notes(ours: dict[int, str], theirs: dict[int, str], renamed: list[int], missing: list[int]) -> list[str]:
    notes = []
    if renamed:
        first = renamed[0]
        notes.append(
            f"{len(renamed)} special tokens have another name in the draft, the first is {first}: "
            f"{theirs[first]!r} there, {ours[first]!r} in the target"
        )
    if missing:
        notes.append(
            f"the draft lacks {len(missing)} tokens and never proposes them, the first is {missing[0]}: "
            f"{ours[missing[0]]!r}"
        )
    return notes
