"""A real byte-level BPE tokenizer of any small size, in the files a Hugging Face folder keeps it in."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = """the quick brown fox jumps over the lazy dog and then the dog looks at the fox in the garden.
there is a tree in the garden, and on the tree there are three birds that sing in the morning
and in the evening.
every token of the draft is a node of the tree; the target reads the whole tree in one pass and takes the
longest branch it agrees with. def add(a, b): return a + b  for i in range(10): print(i, add(i, i))"""


def tiny_vocab(vocab: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens by id and merges by rank: the specials, 256 bytes, one token a merge."""
    tokens = [*SPECIALS, *byte_letters()]
    if vocab < len(tokens):
        raise ValueError(f"a tiny vocabulary has at least {len(tokens)} tokens, not {vocab}")
    known = set(tokens)
    merges: list[tuple[str, str]] = []
    words = [["Ġ", *word] for word in _TEXT.split()]
    upper = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
    spare = ((left, right) for left in upper for right in upper)
    while len(tokens) < vocab:
        pair = _most_frequent(words, known) or next(spare)
        merges.append(pair)
        tokens.append("".join(pair))
        known.add(tokens[-1])
        words = [_merged(word, pair) for word in words]
    return tokens, merges


def byte_letters() -> list[str]:
    """The printable letter GPT-2 gives to each byte 0..255: itself where printable, else 256 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 256
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


def tiny_tokenizer_json(vocab: int) -> str:
    """tokenizer.json of the tiny vocabulary, split as SmolLM splits: single digits, then GPT-2's pattern."""
    tokens, merges = tiny_vocab(vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    value: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }
    return json.dumps(value, ensure_ascii=False)


def write_tiny_tokenizer(folder: Path, vocab: int) -> None:
    """Write tokenizer.json, tokenizer_config.json (with a ChatML template) and generation_config.json."""
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json(vocab), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[2],
        "add_bos_token": False,
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    generation = {"bos_token_id": 0, "eos_token_id": [0, 2]}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


def _most_frequent(words: list[list[str]], known: set[str]) -> tuple[str, str] | None:
    pairs = Counter(pair for word in words for pair in pairwise(word) if "".join(pair) not in known)
    if not pairs:
        return None
    return min(pairs, key=lambda pair: (-pairs[pair], pair))


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for letter in word:
        if out and (out[-1], letter) == pair:
            out[-1] += letter
        else:
            out.append(letter)
    return out
