"""`hexgraft export` of what it cannot take, or to where it cannot write: said, and nothing half-written."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
from command import error_of, hexgraft
from tiny import write_tiny_gguf, write_tiny_hf

from hexgraft.host.bundle import open_bundle


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    """Where an export that fails should leave nothing."""
    (tmp_path / "out").mkdir()
    yield tmp_path / "out" / "bundle"
    assert list((tmp_path / "out").iterdir()) == []


EXPORT = ("--context", "64", "--widths", "1,8")

# ------------------------------------------------------------------ checkpoints


def test_missing_checkpoint(output: Path) -> None:
    result = hexgraft("export", "nowhere.gguf", "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert message == "no checkpoint at nowhere.gguf"
    assert "`hexgraft fetch`" in hint
    assert result.exit_code == 2


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated_gguf(output: Path, tmp_path: Path, share: float) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    os.truncate(file, int(file.stat().st_size * share))
    result = hexgraft("export", file, "-o", output, *EXPORT)
    message, _ = error_of(result)
    assert "tiny.gguf" in message
    assert result.exit_code == 1


def test_overwritten_gguf(output: Path, tmp_path: Path) -> None:
    """Wherever bytes were overwritten, there is a hint."""
    file = write_tiny_gguf(tmp_path / "hole.gguf")
    whole = file.read_bytes()
    for start in range(24, 4000, 97):
        file.write_bytes(whole[:start] + b"\xff" * 64 + whole[start + 64 :])
        done = hexgraft("models", file)
        if done.exit_code:
            assert str(file) in error_of(done)[0]


def test_unsupported_architecture(output: Path, tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    result = hexgraft("export", path, "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert "mamba" in message
    assert "llama" in message + hint
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("number", "said", "hinted"),
    [
        (24, "tensor token_embd.weight of {} has type I8, which is not supported", "Q8_0"),
        (200, "tensor token_embd.weight of {} is of the unknown type 200", "pip install -U gguf"),
    ],
)
def test_unsupported_quantisation(output: Path, tmp_path: Path, number: int, said: str, hinted: str) -> None:
    """A GGUF whose embedding says it is of another type."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="F32")
    raw = bytearray(file.read_bytes())
    name = b"token_embd.weight"
    place = raw.index(name) + len(name) + 4 + 2 * 8
    assert int.from_bytes(raw[place : place + 4], "little") == 0
    raw[place : place + 4] = number.to_bytes(4, "little")
    file.write_bytes(raw)
    result = hexgraft("export", file, "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert message == said.format(file)
    assert hinted in hint
    assert result.exit_code == 1


def test_draft_with_another_vocabulary(output: Path, pair: Path, tmp_path: Path) -> None:
    draft = write_tiny_hf(tmp_path / "draft", vocab=280)
    result = hexgraft("export", pair / "target-checkpoint", "--draft", draft, "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert message.startswith("the draft has another vocabulary: it lacks 40 of the target's 320 tokens, ")
    assert hint == "take a draft of the same model family and tokenizer"
    assert result.exit_code == 1


def test_context_beyond_the_trained_one(output: Path, pair: Path) -> None:
    result = hexgraft("export", pair / "target-checkpoint", "-o", output, "--context", "513")
    message, hint = error_of(result)
    assert message.startswith("--context 513 is more than the 512 positions ")
    assert hint == "use --context 512 or less"
    assert result.exit_code == 1


@pytest.mark.parametrize("widths", ["0", "-1,8", "1,99999", "a", "", "1,,8", "1e3"])
def test_absurd_widths(output: Path, pair: Path, widths: str) -> None:
    result = hexgraft("export", pair / "target-checkpoint", "-o", output, "--widths", widths)
    message, hint = error_of(result)
    assert message == f"--widths {widths!r} is not a list of numbers from 1 to 1024"
    assert hint == "example: --widths 1,8,16,32,128"
    assert result.exit_code == 2


def test_bundle_where_a_checkpoint_is_wanted(output: Path, pair: Path) -> None:
    message, hint = error_of(hexgraft("export", pair / "bundle", "-o", output))
    assert message == f"{pair / 'bundle'} is a bundle, not a checkpoint"
    assert hint == f"give what it was made of, see `hexgraft inspect {pair / 'bundle'}`"


def test_a_file_where_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = hexgraft("export", tmp_path / "file" / "model", "-o", tmp_path / "out")
    message, hint = error_of(done)
    assert "model" in message
    assert hint


# ------------------------------------------------------------------ output folders


def test_output_that_exists(pair: Path, tmp_path: Path) -> None:
    standing = Path(shutil.copytree(pair / "bundle", tmp_path / "bundle"))
    before = open_bundle(standing).digest
    result = hexgraft("export", pair / "target-checkpoint", "-o", standing, *EXPORT)
    message, hint = error_of(result)
    assert message == f"{standing} exists already"
    assert hint == f"choose another name, or remove it: rm -r {quote(str(standing))}"
    assert result.exit_code == 1
    assert open_bundle(standing).digest == before


@pytest.mark.parametrize(("named", "shown"), [("", "."), (".", "."), ("/", "/")])
def test_output_without_a_name(pair: Path, named: str, shown: str) -> None:
    message, hint = error_of(hexgraft("export", pair / "target-checkpoint", "-o", named, *EXPORT))
    assert message == f"{shown} is no name for a new folder"
    assert hint == "example: -o bundle"


def test_full_disk(output: Path, pair: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        result = hexgraft("export", pair / "target-checkpoint", "-o", output, *EXPORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message, hint = error_of(result)
    assert message == f"no space left for the bundle in {output.parent}"
    assert hint.startswith(f"see `df -h {quote(str(output.parent))}`")
    assert result.exit_code == 1


def test_folder_that_cannot_be_written(pair: Path) -> None:
    result = hexgraft("export", pair / "target-checkpoint", "-o", "/proc/bundle", *EXPORT)
    message, hint = error_of(result)
    assert message.startswith("cannot write the bundle in /proc: ")
    assert "ls -ld /proc" in hint
    assert result.exit_code == 1
