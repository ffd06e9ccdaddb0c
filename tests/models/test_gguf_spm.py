"""SentencePiece tokenizers rebuilt from GGUF metadata, against joining by score as it is defined."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fuzzed_texts import plain, texts
from tiny import write_tiny_gguf

from hexgraft.models.errors import CheckpointError
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.gguf_tokenizer import tokenizer_from_gguf

WORDS = (
    "▁the▁fox",
    "▁garden",
    "the▁",
    "ing",
    "tion",
    "▁▁▁▁",
    "▁in",
    "▁an",
    "12",
    "▁def",
    "):",
    "</",
    "<|",
    "|>",
)
WORDS += ("▁don", "'t", "中文")


def spm_fields() -> dict[str, Any]:
    """Pieces, scores and types of a small model: specials, bytes, letters, and every prefix of some words."""
    pieces: dict[str, tuple[float, int]] = {"<unk>": (0, 2), "<s>": (0, 3), "</s>": (0, 3)}
    pieces |= {f"<0x{byte:02X}>": (0.0, 6) for byte in range(256)}
    for word in WORDS:
        for size in range(2, len(word) + 1):
            for start in (0, len(word) - size):
                piece = word[start : start + size]
                pieces.setdefault(piece, (-1.0 - len(pieces) % 97 - len(pieces) / 1000, 1))
    for letter in dict.fromkeys("▁abcdefghijklmnopqrstuvwxyzABC.,()<>|/'\":12é中文"):
        pieces.setdefault(letter, (-1000.0 - len(pieces), 1))
    return {
        "model": "llama",
        "tokens": list(pieces),
        "scores": [float(score) for score, _ in pieces.values()],
        "token_type": [kind for _, kind in pieces.values()],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "pre": "default",
        "merges": None,
        "add_bos_token": True,
    }


def spm_file(path: Path, **changes: Any) -> GgufFile:
    file = GgufFile(write_tiny_gguf(path, layers=1))
    for name, value in (spm_fields() | changes).items():
        file.fields[f"tokenizer.ggml.{name}"] = value
    return file


def reference(text: str, fields: dict[str, Any], prefix: bool) -> list[int]:
    """Join the neighbours with the best score until none is a piece; spell what is left over in bytes."""
    ids = {piece: i for i, piece in enumerate(fields["tokens"])}
    symbols = list(("▁" if prefix and text else "") + text.replace(" ", "▁"))
    while True:
        joined = [
            (-fields["scores"][ids[a + b]], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids
        ]
        if not joined:
            break
        _, i = min(joined)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
    out = []
    for symbol in symbols:
        spelled = [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        out += [ids[symbol]] if symbol in ids else spelled
    return out


@pytest.mark.parametrize("prefix", [True, False])
def test_fuzzed_texts_equal_the_reference_and_round_trip(tmp_path: Path, prefix: bool) -> None:
    fields = spm_fields()
    files = tokenizer_from_gguf(spm_file(tmp_path / "m.gguf", add_space_prefix=prefix), 10**6)
    tokenizer = plain(files)
    for text in texts(2000, seed=5):
        text = text.replace("\u2581", "")
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        assert encoded == reference(text, fields, prefix), repr(text)
        assert not set(encoded) & {0, 1, 2}
        assert tokenizer.decode(encoded, skip_special_tokens=False) == text
    assert files.bos == 1
    assert files.stop_tokens == (2,)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", None, "one entry a token"),
        ("scores", [0.0], "one entry a token"),
        ("scores", [float("nan")] * len(spm_fields()["tokens"]), "not a number"),
        ("tokens", ["x" * 300, *spm_fields()["tokens"][1:]], "token of 300 letters"),
        ("model", "t5", "tokenizer model t5"),
    ],
)
def test_malformed_pieces(tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_gguf(spm_file(tmp_path / "m.gguf", **{key: value}), 10**6)
