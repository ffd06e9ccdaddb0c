"""tokenizer.json rebuilt for a Hugging Face folder that has none: out of vocab.json and merges.txt, or
tokenizer.model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hexgraft.models.errors import CheckpointError, DamagedError
from hexgraft.models.gguf_spm import spm_merges, spm_parts
from hexgraft.models.gguf_tokenizer import LONGEST_PIECE, assemble, bpe_parts
from hexgraft.models.json_file import read_json, read_text
from hexgraft.models.spm_file import SpmFile, read_spm

_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_HINT = "write one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
_QWEN = ("qwen2", "qwen3")
_SPM_CLASSES = ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer")
_METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}


def rebuilt_tokenizer(
    folder: Path, config: dict[str, Any], settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The text of a tokenizer.json, and what of tokenizer_config.json goes without saying for its kind.

    `settings` are those of tokenizer_config.json. Only kinds whose way of cutting text is known are rebuilt;
    raises CheckpointError for others.
    """
    named = str(settings.get("tokenizer_class", "")).removesuffix("Fast")
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        if named == "Qwen2Tokenizer" or (not named and config.get("model_type") in _QWEN):
            return _byte_level(folder, settings), {"add_bos_token": False}
        raise CheckpointError(
            f"{folder} has no tokenizer.json, and {named or 'an unnamed class'} does not tell how its "
            "vocab.json is used",
            _HINT,
        )
    if (folder / "tokenizer.model").exists():
        if named and named not in _SPM_CLASSES:
            raise CheckpointError(
                f"{folder} has no tokenizer.json, and what {named} makes of tokenizer.model is not known",
                _HINT,
            )
        return _sentencepiece(folder, settings)
    raise CheckpointError(f"{folder} has no tokenizer.json", _HINT)


def _byte_level(folder: Path, settings: dict[str, Any]) -> str:
    """Byte-level BPE, cut as Qwen2 cuts text."""
    vocab = read_json(folder / "vocab.json")
    if not all(isinstance(number, int) and number >= 0 for number in vocab.values()):
        raise CheckpointError(f"{folder / 'vocab.json'} does not map tokens to ids", "download it again")
    merges = []
    lines = read_text(folder / "merges.txt").replace("\r\n", "\n").split("\n")
    for line in lines[lines[0].startswith("#version") :]:
        pair = line.split(" ")
        if not line:
            continue
        if len(pair) != 2:
            raise CheckpointError(
                f"{folder / 'merges.txt'}: {line[:80]!r} is not a pair", "download it again"
            )
        merges.append(pair)
    added = _added(folder, settings, {})
    return assemble(added, bpe_parts(vocab | _ids(added), merges, "qwen2"))


def _sentencepiece(folder: Path, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    spm = read_spm(folder / "tokenizer.model")
    where = folder / "tokenizer.model"
    if len(set(spm.pieces)) != len(spm.pieces) or not spm.pieces:
        raise CheckpointError(f"{where} has no pieces, or one twice", "download it again")
    if max(map(len, spm.pieces)) > LONGEST_PIECE:
        raise DamagedError(f"{where} has a piece of {max(map(len, spm.pieces))} letters")
    known = {piece: i for i, piece in enumerate(spm.pieces) if spm.kinds[i] != _UNUSED}
    special = {
        piece: (number, spm.kinds[number] == _CONTROL)
        for number, piece in enumerate(spm.pieces)
        if spm.kinds[number] in (_CONTROL, _USER_DEFINED)
    }
    added = _added(folder, settings, special)
    model = {
        "unk_token": spm.piece(spm.unk),
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": known | _ids(added),
        "merges": spm_merges(known, spm.scores),
    }
    prefix = bool(settings.get("add_prefix_space", spm.prefix))
    parts = spm_parts(prefix)
    if settings.get("legacy") is False and prefix:  # a blank before the text alone, not behind special tokens
        parts |= {"normalizer": None, "pre_tokenizer": _METASPACE}
    return assemble(added, parts | {"model": model}), _defaults(spm)


def _ids(added: list[dict[str, Any]]) -> dict[str, int]:
    """Added tokens by text; the library gives those that the vocabulary lacks ids of its own."""
    return {token["content"]: token["id"] for token in added}


def _defaults(spm: SpmFile) -> dict[str, Any]:
    """A SentencePiece class begins texts with BOS unless told otherwise."""
    named = {"bos_token": spm.bos, "eos_token": spm.eos, "unk_token": spm.unk}
    found = {name: spm.piece(number) for name, number in named.items()}
    return {name: piece for name, piece in found.items() if piece is not None} | {"add_bos_token": True}


def _added(
    folder: Path, settings: dict[str, Any], known: dict[str, tuple[int, bool]]
) -> list[dict[str, Any]]:
    """Entries for `added_tokens`: those `known` (text -> id, special), those of added_tokens.json, and over
    both those of tokenizer_config.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    found = {
        number: {"id": number, "content": text, **flags, "special": special}
        for text, (number, special) in known.items()
    }
    extra = folder / "added_tokens.json"
    for text, number in (read_json(extra) if extra.exists() else {}).items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise CheckpointError(f"{extra} does not map tokens to ids", "download it again")
        found.setdefault(number, {"id": number, "content": text, **flags, "special": True})
    for key, entry in (settings.get("added_tokens_decoder") or {}).items():
        if not str(key).isdigit() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise DamagedError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder is damaged")
        chosen = {name: bool(entry.get(name, False)) for name in (*flags, "special")}
        found[int(key)] = {"id": int(key), "content": entry["content"], **chosen}
    return [found[number] for number in sorted(found)]
