"""A SentencePiece BPE tokenizer rebuilt from the pieces and scores of GGUF metadata."""

from __future__ import annotations

from typing import Any

_BLANK = "\u2581"


def spm_merges(vocabulary: dict[str, int], scores: list[float]) -> list[list[str]]:
    """Merges by rank for pieces that SentencePiece joins by score.

    SentencePiece joins the neighbours whose joined piece has the highest score, wherever they were cut; so
    every way to cut a piece in two known pieces becomes a merge, and pieces come by falling score.
    """
    ranked = sorted((piece for piece in vocabulary if len(piece) > 1), key=lambda p: -scores[vocabulary[p]])
    merges = []
    for piece in ranked:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append([left, right])
    return merges


def spm_parts(prefix: bool) -> dict[str, Any]:
    """Normalizer and decoder: blanks are written as a letter, one is put before a text if `prefix`."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    back = {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "}
    normalizers = [{"type": "Prepend", "prepend": _BLANK}, replace] if prefix else [replace]
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
