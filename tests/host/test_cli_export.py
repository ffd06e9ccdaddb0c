"""`hexgraft export` and `inspect` from outside: words, shapes and exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from command import hexgraft, spawn
from tiny import write_tiny_gguf, write_tiny_hf

from hexgraft.host.bundle import open_bundle


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("tiny") / "target")


def test_the_path_goes_to_stdout_and_the_rest_to_stderr(checkpoint: Path, tmp_path: Path) -> None:
    result = hexgraft("export", checkpoint, "-o", tmp_path / "bundle", "--context", "64")
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'bundle'}\n"
    assert result.stderr.startswith("exported ")


def test_the_shape_of_json(checkpoint: Path, tmp_path: Path) -> None:
    draft = write_tiny_hf(tmp_path / "draft", noise_of=checkpoint, noise=0.1)
    arguments = ("export", checkpoint, "--draft", draft, "-o", tmp_path / "bundle")
    result = hexgraft(*arguments, "--context", "64", "--widths", "8,1,8", "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    bundle = open_bundle(tmp_path / "bundle")
    assert said == {
        "bundle": str(tmp_path / "bundle"),
        "digest": bundle.digest,
        "bytes": sum(entry.size for entry in bundle.manifest.files.values()),
    }
    assert bundle.target.widths == [1, 8]
    assert bundle.target.context == 64
    assert bundle.draft is not None


def test_without_context_a_small_model_keeps_its_own(checkpoint: Path, tmp_path: Path) -> None:
    result = hexgraft("export", checkpoint, "-o", tmp_path / "bundle")
    assert result.exit_code == 0, result.stderr
    assert open_bundle(tmp_path / "bundle").target.context == 512


def test_a_gguf_file_runs_from_end_to_end(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q8_0")
    assert hexgraft("export", file, "-o", tmp_path / "bundle", "--context", "64").exit_code == 0
    result = hexgraft("run", tmp_path / "bundle", "-p", "the fox", "--max-tokens", "5")
    assert result.exit_code == 0
    assert result.stderr.startswith("[max-tokens] 5 tokens")


def test_inspect_says_what_a_bundle_holds(checkpoint: Path, tmp_path: Path) -> None:
    hexgraft("export", checkpoint, "-o", tmp_path / "bundle", "--context", "64")
    bundle = open_bundle(tmp_path / "bundle")
    shown = hexgraft("inspect", tmp_path / "bundle")
    assert shown.exit_code == 0
    for words in ("checked: every byte", bundle.digest[:16], "64 slots", "320 tokens", "stop tokens 0, 2"):
        assert words in shown.stdout
    assert "names and sizes" in hexgraft("inspect", tmp_path / "bundle", "--quick").stdout
    said = json.loads(hexgraft("inspect", tmp_path / "bundle", "--json").stdout)
    assert said["digest"] == bundle.digest
    assert said["verified"] is True
    assert set(said["files"]) == set(bundle.manifest.files)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    checkpoint = write_tiny_hf(tmp_path / "large", hidden=512, heads=8, head_dim=64, ffn=2048, layers=60)
    (tmp_path / "out").mkdir()
    with spawn("export", checkpoint, "-o", tmp_path / "out" / "bundle") as process:
        while not list((tmp_path / "out").iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out == b""
    assert errors.strip() == b"error: interrupted"
    assert list((tmp_path / "out").iterdir()) == []


def test_help_and_version() -> None:
    assert hexgraft("--version").stdout.startswith("hexgraft, version ")
    for command in ("run", "chat", "bake", "export", "inspect"):
        result = hexgraft(command, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: hexgraft {command} ")
    assert hexgraft("bogus").exit_code == 2
