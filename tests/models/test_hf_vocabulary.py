"""Folders without a tokenizer.json: rebuilt where the kind is known, exactly; refused in words where not."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fuzzed_texts import plain, texts
from tiny import write_tiny_gguf, write_tiny_hf
from tiny_tokenizer import CHATML, SPECIALS, tiny_vocab

from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import CheckpointError
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.gguf_tokenizer import tokenizer_from_gguf
from hexgraft.models.hf_tokenizer import tokenizer_from_hf

sentencepiece = pytest.importorskip("sentencepiece")
CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the dog looks at the fox in the garden.",
    "def add(a, b): return a + b  for i in range(10): print(i, add(i, i)) 3.14 1234567",
    "there is a tree in the garden, and on the tree there are three birds. Don't you see them?",
] * 20


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def qwen_folder(folder: Path, vocab: int = 320) -> Path:
    """The tiny vocabulary as Qwen2 keeps it: ordinary tokens in vocab.json, special ones beside it."""
    folder.mkdir(exist_ok=True)
    tokens, merges = tiny_vocab(vocab)
    ordinary = {token: i for i, token in enumerate(tokens) if i >= len(SPECIALS)}
    write_json(folder / "vocab.json", ordinary)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    settings = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {str(i): {"content": text, **flags} for i, text in enumerate(SPECIALS)},
        "eos_token": "<|im_end|>",
        "bos_token": None,
        "chat_template": CHATML,
    }
    write_json(folder / "tokenizer_config.json", settings)
    return folder


def spm_folder(folder: Path, settings: dict[str, Any] | None = None, **options: Any) -> Path:
    """A folder with a tokenizer.model trained on a few sentences, in the manner of Llama's."""
    folder.mkdir(exist_ok=True)
    model = io.BytesIO()
    manner = {
        "model_type": "bpe",
        "vocab_size": 400,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "user_defined_symbols": ["<user>"],
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, **(manner | options)
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    write_json(folder / "tokenizer_config.json", settings or {"tokenizer_class": "LlamaTokenizer"})
    return folder


# ------------------------------------------------------------ vocab and merges


def test_vocab_and_merges_are_read_as_qwen2_reads_them(tmp_path: Path) -> None:
    files = tokenizer_from_hf(qwen_folder(tmp_path / "hf"), {}, 320)
    gguf = GgufFile(write_tiny_gguf(tmp_path / "m.gguf", pre="qwen2", vocab=320, layers=1))
    ours, theirs = plain(files), plain(tokenizer_from_gguf(gguf, 320))
    for text in texts(2000, seed=6):
        encoded = ours.encode(text, add_special_tokens=False).ids
        assert encoded == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert ours.decode(encoded, skip_special_tokens=False) == theirs.decode(
            encoded, skip_special_tokens=False
        )
    assert files.stop_tokens == (0, 2)
    assert files.bos is None
    assert files.chat_template == CHATML


def test_transformers_reads_the_same_folder_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = qwen_folder(tmp_path / "hf")
    write_json(folder / "config.json", {"model_type": "qwen2"})
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = plain(tokenizer_from_hf(folder, {"model_type": "qwen2"}, 320))
    for text in texts(300, seed=7):
        if not any(special in text for special in SPECIALS):
            expected = theirs.encode(text, add_special_tokens=False)
            assert ours.encode(text, add_special_tokens=False).ids == expected, repr(text)


def test_a_whole_checkpoint_without_tokenizer_json(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m", family="qwen2")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json") as caught:
        open_checkpoint(folder)
    assert "save_pretrained" in (caught.value.hint or "")
    qwen_folder(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", {k: v for k, v in settings.items() if "class" not in k})
    assert open_checkpoint(folder).tokenizer.stop_tokens == (0, 2)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("merges.txt", "#version: 0.2\na b c\n", "'a b c' is not a pair"),
        ("vocab.json", '{"a": "b"}', "does not map tokens to ids"),
        ("added_tokens.json", '{"<x>": true}', "does not map tokens to ids"),
        ("added_tokens.json", '{"<x>": -1}', "does not map tokens to ids"),
        ("tokenizer_config.json", '{"tokenizer_class": "GPT2Tokenizer"}', "GPT2Tokenizer does not tell how"),
        ("tokenizer_config.json", "{}", "an unnamed class does not tell how"),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"x": 1}}',
            "added_tokens_decoder is damaged",
        ),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, file: str, text: str, words: str) -> None:
    folder = qwen_folder(tmp_path / "hf")
    (folder / file).write_text(text)
    with pytest.raises(CheckpointError, match=words) as caught:
        tokenizer_from_hf(folder, {"model_type": "gpt2"}, 320)
    if "class" in text and "does not tell" in words:
        assert "save_pretrained" in (caught.value.hint or "")


# ---------------------------------------------------------------- tokenizer.model


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_joined_as_sentencepiece_joins_them(tmp_path: Path, prefix: bool) -> None:
    folder = spm_folder(tmp_path / "spm", add_dummy_prefix=prefix)
    files = tokenizer_from_hf(folder, {}, 400)
    ours = plain(files)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in texts(2000, seed=8):
        text = text.replace("\u2581", "").replace("<user>", "").replace("\0", "")
        expected = theirs.encode(text)
        encoded = ours.encode(text, add_special_tokens=False).ids
        assert encoded == expected, repr(text)
        assert ours.decode(encoded, skip_special_tokens=False) == text
    assert (files.bos, files.stop_tokens) == (1, (2,))
    assert files.special["unk_token"] == "<unk>"


def test_bos_and_added_tokens_of_the_settings(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False, "legacy": False}
    folder = spm_folder(tmp_path / "spm", settings)
    write_json(folder / "added_tokens.json", {"<|end|>": 400})
    files = tokenizer_from_hf(folder, {}, 512)
    assert files.bos is None
    ours = plain(files)
    assert ours.token_to_id("<|end|>") == 400
    # Not legacy: the blank is put before the text alone, not behind a special token too.
    first, second = ours.encode("the fox").ids, ours.encode("<user>the fox").ids[1:]
    assert ours.id_to_token(first[0]).startswith("\u2581")
    assert not ours.id_to_token(second[-len(first) :][0]).startswith("\u2581")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model_type": "unigram", "vocab_size": 320}, "is not of the kind BPE"),
        ({"byte_fallback": False, "vocab_size": 100}, "does not fall back on bytes"),
        ({"normalization_rule_name": "nmt_nfkc"}, "rewrites letters"),
        ({"remove_extra_whitespaces": True}, "joins blanks"),
    ],
)
def test_models_that_would_be_read_otherwise_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        tokenizer_from_hf(spm_folder(tmp_path / "spm", **options), {}, 400)
    assert "save_pretrained" in (caught.value.hint or "")


def test_damaged_and_foreign_models_are_refused(tmp_path: Path) -> None:
    folder = spm_folder(tmp_path / "spm", {"tokenizer_class": "T5Tokenizer"})
    with pytest.raises(CheckpointError, match=r"what T5Tokenizer makes of tokenizer\.model is not known"):
        tokenizer_from_hf(folder, {}, 400)
    write_json(folder / "tokenizer_config.json", {})
    whole = (folder / "tokenizer.model").read_bytes()
    (folder / "tokenizer.model").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="is not a SentencePiece model"):
        tokenizer_from_hf(folder, {}, 400)
    (folder / "tokenizer.model").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is not of the kind BPE"):
        tokenizer_from_hf(folder, {}, 400)
    with (folder / "tokenizer.model").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(CheckpointError, match="larger than any"):
        tokenizer_from_hf(folder, {}, 400)
