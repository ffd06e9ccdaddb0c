"""Draft heads from the command line: exported, shown, run, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import hexgraft
from heads import write_head
from tiny import write_tiny_hf


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("tiny") / "target", layers=4)


@pytest.fixture(scope="module")
def head(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("heads") / "head", target, rows=100, own_head=False)


@pytest.fixture(scope="module")
def bundle(target: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    result = hexgraft("export", target, "-o", path, "--draft", head, "--context", "128", "--widths", "1,8,16")
    assert result.exit_code == 0, result.stderr
    return path


def test_runs_with_every_drafter_say_what_plain_does(bundle: Path) -> None:
    arguments = ("run", bundle, "-p", "the fox", "--max-tokens", "12", "--json")
    plain = json.loads(hexgraft(*arguments, "--plain").stdout)
    for name in ("levels", "chain", "best-first", "static", "sampled", "lookup+levels"):
        result = hexgraft(*arguments, "--draft", name, "--tree-size", "8")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["text"] == plain["text"]
    sampled = hexgraft(*arguments, "--temperature", "1", "--verifier", "sequoia")
    assert sampled.exit_code == 0, sampled.stderr


def test_weights_of_the_cpu_in_eight_bits_leave_the_head_its_own(
    target: Path, head: Path, tmp_path: Path
) -> None:
    export = ("export", target, "-o", tmp_path / "b", "--draft", head, "--context", "64")
    result = hexgraft(*export, "--cpu-precision", "w8")
    assert result.exit_code == 0, result.stderr
    arguments = ("run", tmp_path / "b", "-p", "the fox", "--max-tokens", "8", "--json")
    plain, tree = (
        json.loads(hexgraft(*arguments, *how).stdout) for how in (["--plain"], ["--draft", "levels"])
    )
    assert plain["text"] == tree["text"]


def test_inspect_shows_the_head(bundle: Path) -> None:
    result = hexgraft("inspect", bundle)
    assert result.exit_code == 0, result.stderr
    words = " ".join(result.stdout.split())
    for said in (
        "192 numbers a token, after the layers 1, 2, 2",
        "eagle3 head, reads 192 numbers a token",
        "320 tokens, of which it proposes 100",
        "target/head.onnx",
    ):
        assert said in words


def test_models_tells_of_a_head_beforehand(target: Path, head: Path) -> None:
    result = hexgraft("models", target, "--draft", head, "--json")
    assert result.exit_code == 0, result.stderr
    draft = json.loads(result.stdout)["draft"]
    assert draft["family"] == "eagle3"
    assert draft["proposes"] == 100
    assert draft["borrows"] == ["embed"]
    assert draft["reads_layers"] == [1, 2, 2]
    words = " ".join(hexgraft("models", target, "--draft", head).stdout.split())
    assert "proposes 100 of 320 tokens, reads the target after the layers 1, 2, 2" in words


def test_models_tells_what_a_head_takes_at_each_precision(target: Path, head: Path, bundle: Path) -> None:
    facts = json.loads(hexgraft("models", target, "--draft", head, "--context", "128", "--json").stdout)
    told = {row["precision"]: row["weights"] for row in facts["draft"]["estimates"]}
    assert told.keys() == {row["precision"] for row in facts["target"]["estimates"]}
    assert told["fp32"] == (bundle / "target" / "head.weights").stat().st_size
    assert told["fp16"] == 2 * (facts["draft"]["parameters"] + 320 * 64)  # the embedding lies there again
    assert told["fp16"] > told["w8a16"] > told["w4a16"] > 2 * (320 * 64 + 3 * 64 * 64)  # with fc, both fp16
    assert facts["draft"]["context"] == 128
    words = hexgraft("models", target, "--draft", head).stdout
    assert "memory it adds" in words


def test_a_head_of_another_target_is_refused(head: Path, tmp_path: Path) -> None:
    other = write_tiny_hf(tmp_path / "other", layers=4, vocab=400)
    result = hexgraft("export", other, "-o", tmp_path / "b", "--draft", head)
    assert result.exit_code == 1
    assert "made for a target of 320 tokens, this one has 400" in result.stderr
    assert not (tmp_path / "b").exists()


def test_a_head_is_no_model_to_export(head: Path, tmp_path: Path) -> None:
    result = hexgraft("export", head, "-o", tmp_path / "b")
    assert result.exit_code == 1
    assert "draft head" in result.stderr


def test_a_baked_prefix_serves_the_head_too(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("Be short and kind, and never say more than you know.")
    baked = hexgraft("bake", bundle, "--system-file", tmp_path / "rules", "-o", tmp_path / "p")
    assert baked.exit_code == 0, baked.stderr
    arguments = ("run", bundle, "-p", "the fox", "--max-tokens", "10", "--json", "--draft", "levels")
    with_file = hexgraft(*arguments, "--baked", tmp_path / "p")
    assert with_file.exit_code == 0, with_file.stderr
    without = hexgraft(*arguments, "--system", (tmp_path / "rules").read_text())
    ours, theirs = json.loads(with_file.stdout), json.loads(without.stdout)
    assert ours["text"] == theirs["text"]
    assert ours["stats"]["reused_tokens"] > 20
