"""A tokenizer rebuilt from GGUF metadata as the tokenizers library's own JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from hexgraft.models.checkpoint import TokenizerFiles
from hexgraft.models.errors import CheckpointError, DamagedError
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.gguf_spm import spm_merges, spm_parts
from hexgraft.models.tokenizer import load_tokenizer, require_ids, stop_tokens

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
    r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTES = _GPT2 | {"use_regex": False}


def _pattern(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _split(digits: str) -> list[dict[str, Any]]:
    return [_pattern(_WORDS % digits), _BYTES]


_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_GPT2],
    "smollm": [_DIGITS, _GPT2],
    "starcoder": [_DIGITS, _GPT2],
    "refact": [_DIGITS, _GPT2],
    "qwen2": _split(r"\p{N}"),
    "deepseek-r1-qwen": _split(r"\p{N}"),
    "llama-bpe": _split(r"\p{N}{1,3}"),
    "smaug-bpe": _split(r"\p{N}{1,3}"),
    "dbrx": _split(r"\p{N}{1,3}"),
    "tekken": [_pattern(_CASED % ("", "", r"\p{N}")), _BYTES],
    "gpt-4o": [_pattern(_CASED % (_SHORTENED, _SHORTENED, r"\p{N}{1,3}")), _BYTES],
}
"""How text is cut before merging, by `tokenizer.ggml.pre`, as the models' own tokenizer.json do it. What
llama.cpp's converter calls smaug-bpe is Llama 3's tokenizer where it puts no BOS first, as SmolLM3's; dbrx is
that of Phi-4, gpt-4o that of Phi-4-mini."""

_WHOLE_WORDS = {"llama-bpe", "smaug-bpe", "tekken"}
_ADDS_BOS = {"llama-bpe", "tekken"}
_NFC = {"qwen2", "deepseek-r1-qwen"}
LONGEST_PIECE = 256
_SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer_from_gguf(file: GgufFile, vocab: int) -> TokenizerFiles:
    """Rebuild the tokenizer; `vocab` is the rows of the embedding. Raises CheckpointError."""
    where = str(file.path)
    tokens, kinds = _tokens(file)
    require_ids((len(tokens) - 1,), vocab, where)
    model, pre = _model(file)
    known = {token: number for number, token in enumerate(tokens) if kinds[number] != _UNUSED}
    settings = (
        _spm_settings(file, tokens, known) if model == "llama" else bpe_parts(known, _merges(file), pre)
    )
    tokenizer_json = assemble(_added(tokens, kinds), settings)
    load_tokenizer(tokenizer_json, where)
    special = {
        name: tokens[number] for name, key in _SPECIAL_IDS.items() if (number := _id(file, key, tokens)) >= 0
    }
    template = file.fields.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise DamagedError(f"{where}: tokenizer.chat_template is not a string")
    control = {token: number for number, token in enumerate(tokens) if kinds[number] == _CONTROL}
    named = [number for key in ("eos_token_id", "eot_token_id") if (number := _id(file, key, tokens)) >= 0]
    bos = _id(file, "bos_token_id", tokens)
    adds_bos = file.fields.get("tokenizer.ggml.add_bos_token", model == "llama" or pre in _ADDS_BOS)
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=template,
        stop_tokens=stop_tokens(named, control, template),
        bos=bos if adds_bos and bos >= 0 else None,
        special=special,
        generation=_generation(file),
    )


def _generation(file: GgufFile) -> dict[str, float]:
    keys = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    found = {name: file.fields.get(f"general.sampling.{key}") for name, key in keys.items()}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _model(file: GgufFile) -> tuple[str, str]:
    """The kind of tokenizer, "gpt2" or "llama", and how it cuts text before merging."""
    model, pre = (file.fields.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if model == "llama":
        return model, ""
    if model != "gpt2":
        raise CheckpointError(
            f"{file.path}: tokenizer model {model} is not supported",
            "supported: gpt2 (byte-level BPE) and llama (SentencePiece)",
        )
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise CheckpointError(
            f"{file.path}: pre-tokenizer {pre} is not supported",
            f"supported: {', '.join(sorted(PRE_TOKENIZERS))}",
        )
    return model, pre


def _tokens(file: GgufFile) -> tuple[list[str], list[int]]:
    tokens = file.fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise DamagedError(f"{file.path} has no tokens (tokenizer.ggml.tokens)")
    if len(set(tokens)) != len(tokens):
        raise DamagedError(f"{file.path}: tokenizer.ggml.tokens has a token twice")
    kinds = file.fields.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise DamagedError(f"{file.path}: tokenizer.ggml.token_type does not have one entry a token")
    return tokens, kinds


def _merges(file: GgufFile) -> list[list[str]]:
    merges = file.fields.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise DamagedError(f"{file.path} has no merges (tokenizer.ggml.merges)")
    pairs = [str(merge).split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2:
            raise DamagedError(f"{file.path}: {' '.join(pair)[:80]!r} in tokenizer.ggml.merges is not a pair")
    return pairs


def _id(file: GgufFile, key: str, tokens: list[str]) -> int:
    """A token id of the metadata, -1 if it is not there."""
    number = file.fields.get(f"tokenizer.ggml.{key}", -1)
    if not isinstance(number, int):
        raise DamagedError(f"{file.path}: tokenizer.ggml.{key} is not a token id")
    if number != -1:
        require_ids((number,), len(tokens), f"{file.path}: tokenizer.ggml.{key}")
    return number


def bpe_parts(known: dict[str, int], merges: list[list[str]], pre: str) -> dict[str, Any]:
    """A byte-level BPE that cuts text as `pre` does: its parts of a tokenizer.json."""
    return {
        "normalizer": {"type": "NFC"} if pre in _NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "decoder": _GPT2,
        "model": {"ignore_merges": pre in _WHOLE_WORDS, "vocab": known, "merges": merges},
    }


def _spm_settings(file: GgufFile, tokens: list[str], known: dict[str, int]) -> dict[str, Any]:
    scores = file.fields.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise DamagedError(f"{file.path}: tokenizer.ggml.scores does not have one entry a token")
    if not all(isinstance(score, float) and math.isfinite(score) for score in scores):
        raise DamagedError(f"{file.path}: tokenizer.ggml.scores holds something that is not a number")
    longest = max(map(len, known), default=0)
    if longest > LONGEST_PIECE:
        raise DamagedError(f"{file.path} has a token of {longest} letters, which no tokenizer needs")
    unknown = _id(file, "unknown_token_id", tokens)
    model = {
        "unk_token": tokens[unknown] if unknown >= 0 else None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": known,
        "merges": spm_merges(known, scores),
    }
    return spm_parts(bool(file.fields.get("tokenizer.ggml.add_space_prefix", True))) | {"model": model}


def _added(tokens: list[str], kinds: list[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": number, "content": token, **flags, "special": kinds[number] == _CONTROL}
        for number, token in enumerate(tokens)
        if kinds[number] in (_CONTROL, _USER_DEFINED)
    ]


def assemble(added: list[dict[str, Any]], settings: dict[str, Any]) -> str:
    """A tokenizer.json of its added tokens and its parts, the model a BPE. Unused tokens (rows that only pad
    the embedding) stay out, as in the models' own."""
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
        **settings,
        "model": model | settings["model"],
    }
    return json.dumps(value, ensure_ascii=False)
