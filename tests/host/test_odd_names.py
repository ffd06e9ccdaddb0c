"""Names nobody would choose, of files and in them: errors stay in a line, terminals are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import error_of, hexgraft
from pair import write_pair
from tiny import write_tiny_gguf

from hexgraft.host.bundle import open_bundle

EXPORT = ("--context", "64", "--widths", "1,8")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_pair(tmp_path, noise=None)


def test_names_in_a_bundle_are_shown_as_they_are(bundle: Path) -> None:
    """No markup of ours, and nothing a terminal would act on."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["target"] |= {"name": "[/red]\x1b[2Jmodel", "architecture": "[/]"}
    manifest["provenance"]["target"]["checkpoint"] = "[bold]"
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    result = hexgraft("inspect", bundle)
    assert result.exit_code == 0
    assert "[/red]\ufffd[2Jmodel" in result.stdout
    assert "[/], " in result.stdout
    assert "[bold] (" in result.stdout
    assert "\x1b[2J" not in result.stdout


def test_names_in_errors_are_nothing_a_terminal_acts_on(bundle: Path) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["target"]["graphs"][0]["file"] = "target/\x1b]0;title\x07\x9bx.onnx"
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    message, _ = error_of(hexgraft("inspect", bundle))
    assert message.endswith("a graph that is not in the bundle: target/\ufffd]0;title\ufffd\ufffdx.onnx")


@pytest.mark.parametrize(
    "words",
    [("run", "a\nb\x1b[2J", "-p", "x"), ("export", "a\nb\x1b[2J", "-o", "x"), ("tree", "a\nb\x1b[2J")],
)
def test_names_in_errors_stay_in_a_line(words: tuple[str, ...]) -> None:
    assert "a\ufffdb\ufffd[2J" in error_of(hexgraft(*words))[0]


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    """A model is called what can be read of its file's name; a path on standard output is the path."""
    file = write_tiny_gguf(tmp_path / "tiny\udcff.gguf")
    bundle = tmp_path / "bundle"
    assert hexgraft("export", file, "-o", bundle, *EXPORT).exit_code == 0
    assert open_bundle(bundle).target.name == "tiny\ufffd"
    other = bundle.rename(tmp_path / "b\udcff")
    message, hint = error_of(hexgraft("run", other, "-p", "hi"))
    assert message.startswith("ONNX Runtime cannot open ")
    assert message.endswith("/target/model.onnx, whose path is not UTF-8")
    assert hint.startswith("rename ")
    said = hexgraft("export", file, "-o", tmp_path / "c\udcff", *EXPORT, "--json")
    assert json.loads(said.stdout)["bundle"] == str(tmp_path / "c\udcff")
    assert "c\\udcff" in said.stdout


def test_a_name_no_file_system_takes(tmp_path: Path) -> None:
    message, hint = error_of(hexgraft("inspect", tmp_path / ("a" * 300)))
    assert "File name too long" in message
    assert hint == "choose a shorter name"
