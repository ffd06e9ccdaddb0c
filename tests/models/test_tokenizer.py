"""Tokenizers: folder, GGUF and a naive reference agree; stop tokens, BOS and templates are found."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import regex
from fuzzed_texts import plain, texts
from tiny import write_tiny_gguf, write_tiny_hf
from tiny_tokenizer import CHATML, SPECIALS, byte_letters, tiny_tokenizer_json, tiny_vocab

from hexgraft.models.checkpoint import TokenizerFiles, open_checkpoint
from hexgraft.models.errors import CheckpointError
from hexgraft.models.fetch import fetch_smollm2
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.gguf_tokenizer import PRE_TOKENIZERS, tokenizer_from_gguf
from hexgraft.models.tokenizer import first_difference, load_tokenizer, stop_tokens, vocab_hash

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SHORTENED}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SHORTENED}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}|\P{N}+", GPT2],
    "starcoder": [r"\p{N}|\P{N}+", GPT2],
    "refact": [r"\p{N}|\P{N}+", GPT2],
    "qwen2": [CL100K.replace("DIGITS", r"\p{N}")],
    "deepseek-r1-qwen": [CL100K.replace("DIGITS", r"\p{N}")],
    "tekken": [TEKKEN],
    "llama-bpe": [CL100K.replace("DIGITS", r"\p{N}{1,3}")],
    "smaug-bpe": [CL100K.replace("DIGITS", r"\p{N}{1,3}")],
    "dbrx": [CL100K.replace("DIGITS", r"\p{N}{1,3}")],
    "gpt-4o": [O200K],
}
NFC = ("qwen2", "deepseek-r1-qwen")


def reference(text: str, pre: str, tokens: dict[str, int], ranks: dict[tuple[str, str], int]) -> list[int]:
    """Byte-level BPE by the definition: cut by each pattern, spell bytes, merge the lowest rank first."""
    words = [unicodedata.normalize("NFC", text) if pre in NFC else text]
    for pattern in PATTERNS[pre]:
        words = [part for word in words for part in regex.findall(pattern, word)]
    letters, out = byte_letters(), []
    for word in words:
        symbols = [letters[byte] for byte in word.encode()]
        if pre in ("llama-bpe", "smaug-bpe", "tekken") and "".join(symbols) in tokens:
            symbols = ["".join(symbols)]
        while True:
            pairs = [
                (ranks[pair], i)
                for i in range(len(symbols) - 1)
                if (pair := tuple(symbols[i : i + 2])) in ranks
            ]
            if not pairs:
                break
            _, i = min(pairs)
            symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
        out += [tokens[symbol] for symbol in symbols]
    return out


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_fuzzed_texts_round_trip_and_equal_the_reference(tmp_path: Path, pre: str) -> None:
    tokenizer = plain(
        open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", pre=pre, vocab=400, layers=1)).tokenizer
    )
    tokens, merges = tiny_vocab(400)
    ids, ranks = {token: i for i, token in enumerate(tokens)}, {pair: i for i, pair in enumerate(merges)}
    for text in texts(2000 if pre in ("smollm", "qwen2") else 500, seed=len(pre)):
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        assert encoded == reference(text, pre, ids, ranks), text
        assert not set(encoded) & {0, 1, 2}
        expected = unicodedata.normalize("NFC", text) if pre in NFC else text
        assert tokenizer.decode(encoded, skip_special_tokens=False) == expected


@pytest.mark.parametrize(
    ("pre", "bos"), [("llama-bpe", 0), ("tekken", 0), ("smaug-bpe", None), ("gpt-4o", None), ("qwen2", None)]
)
def test_who_begins_texts_with_bos_unless_told(tmp_path: Path, pre: str, bos: int | None) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", pre=pre, layers=1))
    file.fields.pop("tokenizer.ggml.add_bos_token", None)
    assert tokenizer_from_gguf(file, 320).bos == bos


def test_special_tokens_are_parsed_only_when_asked(tmp_path: Path) -> None:
    tokenizer = plain(open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf", layers=1)).tokenizer)
    text = "<|im_start|>the<|im_end|>"
    assert not {1, 2} & set(tokenizer.encode(text).ids)
    tokenizer.encode_special_tokens = False
    ids = tokenizer.encode(text).ids
    assert (ids[0], ids[-1]) == (1, 2)


def test_folder_and_gguf_give_one_vocabulary(tmp_path: Path) -> None:
    folder = open_checkpoint(write_tiny_hf(tmp_path / "hf")).tokenizer
    file = open_checkpoint(write_tiny_gguf(tmp_path / "m.gguf")).tokenizer
    assert first_difference(folder.tokenizer_json, file.tokenizer_json) is None
    assert vocab_hash(load_tokenizer(folder.tokenizer_json, "here")) == vocab_hash(
        load_tokenizer(file.tokenizer_json, "here")
    )
    assert folder.stop_tokens == file.stop_tokens == (0, 2)
    assert folder.chat_template == file.chat_template == CHATML
    assert folder.bos is None
    assert file.bos is None
    assert folder.special == {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2]}
    assert plain(folder).encode("the fox 12").ids == plain(file).encode("the fox 12").ids


def test_first_difference_names_the_lowest_id() -> None:
    ours = tiny_tokenizer_json(320)
    value = json.loads(ours)
    vocab = value["model"]["vocab"]
    first, second = (token for token, i in vocab.items() if i in (310, 315))
    vocab[first], vocab[second] = vocab[second], vocab[first]
    swapped = json.dumps(value)
    assert first_difference(ours, swapped) == (310, first, second)
    assert first_difference(swapped, ours) == (310, second, first)
    assert vocab_hash(load_tokenizer(ours, "here")) != vocab_hash(load_tokenizer(swapped, "here"))
    longer = tiny_tokenizer_json(321)
    assert first_difference(ours, longer) == (320, None, tiny_vocab(321)[0][320])
    assert vocab_hash(load_tokenizer(ours, "here")) != vocab_hash(load_tokenizer(longer, "here"))


def test_unused_tokens_only_pad_the_embedding(tmp_path: Path) -> None:
    """A GGUF pads its token list to the embedding's rows; the vocabulary stays that of the folder."""
    path = write_tiny_gguf(tmp_path / "m.gguf", layers=1)
    short = open_checkpoint(path).tokenizer
    file = GgufFile(path)
    file.fields["tokenizer.ggml.tokens"] += ["[PAD320]", "[PAD321]"]
    file.fields["tokenizer.ggml.token_type"] += [5, 5]
    padded = tokenizer_from_gguf(file, 322)
    assert first_difference(short.tokenizer_json, padded.tokenizer_json) is None
    with pytest.raises(CheckpointError, match="token id 321"):
        tokenizer_from_gguf(file, 321)


def settings(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(changes)
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "DROP"}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_hf(tmp_path / "model", layers=1)


def read(folder: Path) -> TokenizerFiles:
    return open_checkpoint(folder).tokenizer


def test_stop_tokens_come_from_where_the_model_keeps_them(folder: Path) -> None:
    settings(folder, "generation_config.json", eos_token_id=300)
    assert read(folder).stop_tokens == (0, 2, 300)
    settings(folder, "generation_config.json", eos_token_id=[301, 7])
    assert read(folder).stop_tokens == (0, 2, 7, 301)
    (folder / "generation_config.json").unlink()
    settings(folder, "config.json", eos_token_id=9)
    assert read(folder).stop_tokens == (0, 2, 9)
    settings(folder, "config.json", eos_token_id=None)
    settings(folder, "tokenizer_config.json", chat_template="DROP", eos_token="z")
    assert read(folder).stop_tokens == (0, 3 + ord("z"))
    settings(folder, "config.json", eos_token_id=[True])
    with pytest.raises(CheckpointError, match="eos_token_id is neither"):
        read(folder)
    settings(folder, "config.json", eos_token_id=320)
    with pytest.raises(CheckpointError, match="token id 320"):
        read(folder)


def test_turn_ends_count_only_where_the_template_writes_them() -> None:
    special = {"<|endoftext|>": 5, "<|im_end|>": 6, "<|eot_id|>": 7}
    assert stop_tokens([9], special, None) == (5, 9)
    assert stop_tokens([9, 5], special, "{{ x }}<|im_end|>") == (5, 6, 9)
    assert stop_tokens([], {}, "<|im_end|>") == ()


def test_bos_is_what_the_tokenizer_would_add(folder: Path) -> None:
    assert read(folder).bos is None
    settings(folder, "tokenizer_config.json", add_bos_token="DROP")
    assert read(folder).bos is None
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": SPECIALS[1], "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {SPECIALS[1]: {"id": SPECIALS[1], "ids": [1], "tokens": [SPECIALS[1]]}},
    }
    settings(folder, "tokenizer.json", post_processor=template)
    assert read(folder).bos == 1
    settings(folder, "tokenizer_config.json", add_bos_token=False)
    assert read(folder).bos is None
    settings(folder, "tokenizer_config.json", add_bos_token=True)
    assert read(folder).bos == 0
    settings(folder, "tokenizer_config.json", bos_token="<none>")
    with pytest.raises(CheckpointError, match=r"names '<none>', which tokenizer.json lacks"):
        read(folder)


def test_bos_of_a_gguf(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", layers=1, pre="llama-bpe")
    file = GgufFile(path)
    assert tokenizer_from_gguf(file, 320).bos is None
    del file.fields["tokenizer.ggml.add_bos_token"]
    assert tokenizer_from_gguf(file, 320).bos == 0
    file.fields["tokenizer.ggml.pre"] = "qwen2"
    assert tokenizer_from_gguf(file, 320).bos is None
    file.fields["tokenizer.ggml.add_bos_token"] = True
    assert tokenizer_from_gguf(file, 320).bos == 0


def test_chat_templates_of_a_folder(folder: Path) -> None:
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    settings(folder, "tokenizer_config.json", chat_template=named)
    assert read(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J<|im_end|>")
    assert read(folder).chat_template == "J<|im_end|>"
    (folder / "chat_template.jinja").unlink()
    settings(folder, "tokenizer_config.json", chat_template=named[:1])
    assert read(folder).chat_template is None
    settings(folder, "tokenizer_config.json", chat_template=5)
    with pytest.raises(CheckpointError, match="chat_template is not a string"):
        read(folder)


def test_special_tokens_may_be_objects(folder: Path) -> None:
    settings(
        folder, "tokenizer_config.json", eos_token={"content": SPECIALS[0], "lstrip": False}, pad_token=None
    )
    assert read(folder).special == {"bos_token": SPECIALS[0], "eos_token": SPECIALS[0]}


def test_special_tokens_without_a_row_are_left_out(folder: Path) -> None:
    """As of the smallest Gemma 3, whose tokenizer is that of models with a token more."""
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text())
    value["added_tokens"].append({**value["added_tokens"][0], "id": 320, "content": "<image>"})
    path.write_text(json.dumps(value))
    checkpoint = open_checkpoint(folder)
    assert max(plain(checkpoint.tokenizer).get_vocab().values()) == 319
    assert checkpoint.notes == ["left out: 1 special token of its tokenizer that the model has no row for"]
    value["model"]["vocab"]["other"] = 321
    path.write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="token id 321"):
        open_checkpoint(folder)


def test_truncation_of_the_training_does_not_cut_prompts(folder: Path) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    settings(folder, "tokenizer.json", truncation=truncation)
    assert len(plain(read(folder)).encode("a b c d e f g").ids) > 3


def test_missing_and_malformed_tokenizers(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CheckpointError, match="not a tokenizer the tokenizers library reads"):
        read(folder)
    (folder / "tokenizer.json").write_text(text[:-10])
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json(330))
    with pytest.raises(CheckpointError, match=r"token id 329, but the model's vocabulary ends at 319"):
        read(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer.json") as caught:
        read(folder)
    assert "save_pretrained" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", ["a"], "one entry a token"),
        ("tokens", "a", "has no tokens"),
        ("tokens", ["a"] * 320, "a token twice"),
        ("merges", ["a b c"], "is not a pair"),
        ("merges", ["nope nope"], "tokenizers library"),
        ("merges", None, "has no merges"),
        ("pre", ["smollm"], "pre-tokenizer"),
        ("eos_token_id", "x", "not a token id"),
    ],
)
def test_malformed_gguf_tokenizers(tmp_path: Path, key: str, value: Any, message: str) -> None:
    file = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", layers=1))
    file.fields[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(CheckpointError, match=message):
        tokenizer_from_gguf(file, 320)


@cache
def smollm2() -> TokenizerFiles:
    return open_checkpoint(fetch_smollm2()).tokenizer


@pytest.mark.slow
def test_real_smollm2_equals_the_reference() -> None:
    tokenizer = plain(smollm2())
    fields = GgufFile(fetch_smollm2()).fields
    ids = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(fields["tokenizer.ggml.merges"])}
    for text in texts(2000, seed=1):
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        assert encoded == reference(text, "smollm", ids, ranks), text
        assert tokenizer.decode(encoded, skip_special_tokens=False) == text
    assert tokenizer.encode("Hello, world! 42").tokens == ["Hello", ",", "Ġworld", "!", "Ġ", "4", "2"]
