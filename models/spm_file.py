"""SentencePiece's own file, `tokenizer.model`: its pieces, and the settings that decide how it reads text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message,
    message_factory,
)

from hexgraft.models.errors import CheckpointError

_LIMIT = 64 << 20
"""Bytes; the largest in use has 5 MB."""
_BPE = 2
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "Piece": (("piece", 1, "string"), ("score", 2, "float"), ("kind", 3, "int32")),
    "Trainer": (
        ("model_type", 3, "int32"),
        ("byte_fallback", 35, "bool"),
        ("unk_id", 40, "int32"),
        ("bos_id", 41, "int32"),
        ("eos_id", 42, "int32"),
    ),
    "Normalizer": (
        ("charsmap", 2, "bytes"),
        ("add_dummy_prefix", 3, "bool"),
        ("remove_extra_whitespaces", 4, "bool"),
        ("escape_whitespaces", 5, "bool"),
    ),
    "Model": (("pieces", 1, "*Piece"), ("trainer", 2, "Trainer"), ("normalizer", 3, "Normalizer")),
}
"""Field numbers of sentencepiece_model.proto; what is not named here is skipped."""
_DEFAULTS = {
    "kind": "1",
    "model_type": "1",
    "unk_id": "0",
    "bos_id": "1",
    "eos_id": "2",
    "add_dummy_prefix": "true",
    "remove_extra_whitespaces": "true",
    "escape_whitespaces": "true",
}


@dataclass(frozen=True, slots=True)
class SpmFile:
    """Pieces with their scores and kinds by id, and whether a blank is put before a text. Kinds are numbered
    as in GGUF: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte."""

    pieces: list[str]
    scores: list[float]
    kinds: list[int]
    prefix: bool
    unk: int
    bos: int
    eos: int

    def piece(self, number: int) -> str | None:
        return self.pieces[number] if 0 <= number < len(self.pieces) else None


def read_spm(path: Path) -> SpmFile:
    """Raises CheckpointError for a damaged file, and for one that a BPE over pieces would not read the same
    way: unigram models, normalisation of letters or blanks, no bytes to fall back on."""
    if path.stat().st_size > _LIMIT:
        raise CheckpointError(f"{path} is larger than any SentencePiece model", "download it again")
    model = _model()()
    try:
        model.ParseFromString(path.read_bytes())
    except (message.DecodeError, OSError) as error:
        raise CheckpointError(f"{path} is not a SentencePiece model: {error}", "download it again") from error
    trainer, normalizer = model.trainer, model.normalizer
    unlike = [
        words
        for words, found in (
            ("is not of the kind BPE", trainer.model_type != _BPE),
            ("does not fall back on bytes", not trainer.byte_fallback),
            ("rewrites letters", bool(normalizer.charsmap)),
            ("joins blanks", normalizer.remove_extra_whitespaces),
            ("leaves blanks as they are", not normalizer.escape_whitespaces),
        )
        if found
    ]
    if unlike:
        raise CheckpointError(
            f"{path} {unlike[0]}, which the tokenizers library would not do alike",
            "write a tokenizer.json with transformers: AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER)",
        )
    return SpmFile(
        [piece.piece for piece in model.pieces],
        [piece.score for piece in model.pieces],
        [piece.kind for piece in model.pieces],
        normalizer.add_dummy_prefix,
        trainer.unk_id,
        trainer.bos_id,
        trainer.eos_id,
    )


@cache
def _model() -> Any:
    """The message class of the file, made of `_MESSAGES`."""
    package = "hexgraft.spm"
    file = descriptor_pb2.FileDescriptorProto(name="hexgraft_spm.proto", package=package, syntax="proto2")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field, number, kind in fields:
            entry = described.field.add(name=field, number=number)
            entry.label = entry.LABEL_REPEATED if kind.startswith("*") else entry.LABEL_OPTIONAL
            if kind.lstrip("*") in _MESSAGES:
                entry.type, entry.type_name = entry.TYPE_MESSAGE, f".{package}.{kind.lstrip('*')}"
            else:
                entry.type = getattr(entry, f"TYPE_{kind.upper()}")
            if field in _DEFAULTS:
                entry.default_value = _DEFAULTS[field]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Model"))
