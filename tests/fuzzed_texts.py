"""Texts that tokenizers trip over, and tokenizers as user text is encoded."""

from __future__ import annotations

import random
import unicodedata

from tokenizers import Tokenizer

from hexgraft.models.checkpoint import TokenizerFiles

PIECES = [
    *"abcdefghij ABC 0123456789 .,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+~` \t\n\r",
    *"éüñßøŁçšžāŽабвгдλμπשםعربحिन्दीไทย中文字日本かなカナ한국어😀👍🏽🇫🇷∑∞√≤½²Ⅷ٣　\u00a0\u200b\u0301\u00ad",
    *(
        "the",
        " the",
        "  ",
        "    ",
        "\n\n",
        "\r\n",
        " fox",
        "garden",
        "'s",
        "'LL",
        "don't",
        "1234567",
        "3.14",
        "é",
    ),
    *(
        "def f(x):\n    return x",
        "for i in range(10):",
        "<|",
        "|>",
        "im_end",
        "<|im_end|",
        "<|im_start|>user\n",
    ),
    *("<|im_end|>", "<|endoftext|>", "Ġthe", "Ċ", "http://a.b/c?d=e"),
]


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    made = ["".join(rng.choice(PIECES) for _ in range(rng.randrange(30))) for _ in range(count - 50)]
    for _ in range(50):
        points = (rng.choice((rng.randrange(32, 0x2000), rng.randrange(0x3000, 0xD800))) for _ in range(12))
        # Unassigned code points are classed differently by Unicode versions.
        made.append("".join(letter for letter in map(chr, points) if unicodedata.category(letter) != "Cn"))
    return made


def plain(files: TokenizerFiles) -> Tokenizer:
    """The tokenizer as user text is encoded: special tokens in it are only text."""
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    tokenizer.encode_special_tokens = True
    return tokenizer
