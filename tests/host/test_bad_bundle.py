"""Bundles that are altered, or that are none, given to commands: one sentence, a hint, an exit code."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from command import error_of, hexgraft, last_error_of
from tiny import write_tiny_gguf

from hexgraft.host.cpu_graph import load_cpu_graph
from hexgraft.models.errors import BundleError


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
    assert message == f"{bundle} is a folder, and a trace is a file"
    assert hint == "give the trace first"


@pytest.mark.parametrize("verified", [True, False])
def test_a_tokenizer_that_is_none(copy: Path, verified: bool) -> None:
    """Whole by its hash or not looked at: it is named by its path."""
    manifest, file = copy / "bundle.json", copy / "tokenizer.json"
    file.write_text("{}" + " " * (file.stat().st_size - 2))
    found = json.loads(manifest.read_text())
    found["files"]["tokenizer.json"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(found))
    done = hexgraft("run", copy, "-p", "hi", *([] if verified else ["--no-verify"]))
    message, hint = error_of(done)
    assert message.startswith(f"{file} is not a tokenizer")
    assert hint == "make it again with `hexgraft export`"


def test_a_chat_template_that_is_none(copy: Path) -> None:
    file = copy / "chat_template.jinja"
    file.write_text("{% for" + " " * (file.stat().st_size - 6))
    for command in (("run", copy, "-p", "hi"), ("chat", copy)):
        message, hint = error_of(hexgraft(*command, "--no-verify", input="hi\n"))
        assert message.startswith("the model's chat template is malformed: ")
        assert hint == "do without the template: `hexgraft run BUNDLE --raw -p TEXT`"


def test_weights_that_are_no_numbers(copy: Path) -> None:
    file = copy / "target" / "model.weights"
    file.write_bytes(b"\xff" * file.stat().st_size)
    done = hexgraft("run", copy, "-p", "hi", "--no-verify", "--plain")
    message, hint = last_error_of(done)
    assert message == "the logits are not finite"
    assert hint == "check the bundle's files by leaving out --no-verify; if they are whole, export again"


# ------------------------------------------------------------ files nobody may read


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Paths the system refuses to read from now on; it refuses its administrator nothing by itself."""
    refused: set[Path] = set()
    asked = os.access

    def access(path: str | Path, mode: int) -> bool:
        return Path(path) not in refused and asked(path, mode)

    monkeypatch.setattr(os, "access", access)
    return refused


def test_files_that_are_not_readable(bundle: Path, traces: dict[str, Path], unreadable: set[Path]) -> None:
    trace = traces["plain"]
    unreadable |= {bundle, trace}
    for command, name, path in (
        (("run", bundle, "-p", "hi"), "BUNDLE", bundle),
        (("tree", trace), "TRACE", trace),
        (("models", bundle), "CHECKPOINT", bundle),
    ):
        done = hexgraft(*command)
        assert error_of(done) == (
            f"{name}: {path} is not readable",
            f"see `ls -ld {path.parent} {path}`, and make it readable with chmod",
        )


@pytest.mark.parametrize("name", ["model.onnx", "model.weights"])
def test_a_graph_that_is_not_readable(copy: Path, name: str, unreadable: set[Path]) -> None:
    """To export it again would not help."""
    file = copy / "target" / name
    file.write_bytes(b"")
    unreadable.add(file)
    with pytest.raises(BundleError) as raised:
        load_cpu_graph(copy / "target" / "model.onnx", 1, "export it")
    assert raised.value.message == f"{file} is not readable"
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("see `ls -ld ")
