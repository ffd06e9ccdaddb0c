"""Bundles that are altered, or that are none, given to commands: one sentence, a hint, an exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import error_of, hexgraft
from tiny import write_tiny_gguf


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    """A bundle to be changed."""
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


@pytest.mark.parametrize("command", [("inspect",), ("run", "-p", "hi"), ("chat",)])
def test_changed_byte(copy: Path, command: tuple[str, ...]) -> None:
    file = copy / "target" / "model.weights"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    result = hexgraft(command[0], copy, *command[1:], input="hi\n")
    message, hint = error_of(result)
    assert message == f"{file} is not the file that was exported: sha256 differs"
    assert hint == "make it again with `hexgraft export`"
    assert result.exit_code == 1


def test_no_verify_reads_no_file_it_does_not_need(copy: Path) -> None:
    """What it skips is the content; a size that differs is found at once."""
    file = copy / "draft" / "model.weights"
    raw = file.read_bytes()
    file.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    arguments = ("run", copy, "-p", "hi", "--plain", "--max-tokens", "2")
    assert hexgraft(*arguments).exit_code == 1
    assert hexgraft(*arguments, "--no-verify").exit_code == 0
    file.write_bytes(raw[1:])
    message, _ = error_of(hexgraft(*arguments, "--no-verify"))
    assert f"has {len(raw) - 1} bytes" in message


def test_unknown_version(copy: Path) -> None:
    manifest = json.loads((copy / "bundle.json").read_text())
    (copy / "bundle.json").write_text(json.dumps(manifest | {"format": 99}))
    result = hexgraft("run", copy, "-p", "hi")
    message, hint = error_of(result)
    assert "has bundle format 99, this hexgraft reads format " in message
    assert hint == "export again with this version, or use the version that made the bundle"
    assert result.exit_code == 1


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_tokenizer_file_that_is_no_text(copy: Path, name: str) -> None:
    file = copy / name
    file.write_bytes(b"\xff" * file.stat().st_size)
    result = hexgraft("run", copy, "-p", "hi", "--no-verify")
    message, hint = error_of(result)
    assert message == f"{file} is not UTF-8 text: invalid start byte"
    assert hint == "make it again with `hexgraft export`"
    assert result.exit_code == 1


def test_path_that_leaves_the_bundle(copy: Path) -> None:
    manifest = json.loads((copy / "bundle.json").read_text())
    manifest["files"]["../../etc/passwd"] = {"size": 1, "sha256": "0" * 64}
    (copy / "bundle.json").write_text(json.dumps(manifest))
    message, _ = error_of(hexgraft("inspect", copy))
    assert message == f"{copy / 'bundle.json'} names '../../etc/passwd', which is no file in a bundle"


def test_link_in_a_bundle(copy: Path, tmp_path: Path) -> None:
    (copy / "tokenizer.json").rename(tmp_path / "elsewhere")
    (copy / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    message, _ = error_of(hexgraft("inspect", copy))
    assert message == f"{copy / 'tokenizer.json'} is a link; a bundle holds plain files"


def test_checkpoint_where_a_bundle_is_wanted(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    message, hint = error_of(hexgraft("run", file, "-p", "hi"))
    assert message == f"no bundle at {file}"
    assert "`hexgraft export tiny.gguf -o BUNDLE`" in hint
    other = tmp_path / "letter.txt"
    other.write_text("Dear neighbour")
    _, hint = error_of(hexgraft("run", other, "-p", "hi"))
    assert hint == "give the folder that `hexgraft export` wrote"


def test_bundle_where_a_trace_is_wanted(bundle: Path) -> None:
    message, hint = error_of(hexgraft("replay", bundle, "letter.jsonl"))
    assert message == f"cannot read the trace {bundle}: Is a directory"
    assert hint.endswith("a bundle comes after it")
