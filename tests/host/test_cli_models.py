"""`hexgraft models`: the lists are those of the readers, estimates those of real exports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import error_of, hexgraft
from htp_build import needs_qnn
from tiny import write_tiny_hf

from hexgraft.export.sizes import estimate
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.families import FAMILIES
from hexgraft.models.gguf_config import GGUF_FAMILIES
from hexgraft.models.hf_config import HF_FAMILIES


def test_families_are_those_the_readers_take() -> None:
    assert {name for family in FAMILIES for name in family.hf} == set(HF_FAMILIES)
    assert {name for family in FAMILIES for name in family.gguf} == set(GGUF_FAMILIES)


def test_lists_families_and_pairs() -> None:
    result = hexgraft("models")
    assert result.exit_code == 0
    assert "Gemma 3 (text)" in result.stdout
    assert "SmallThinker-3B-Preview" in result.stdout
    listed = json.loads(hexgraft("models", "--json").stdout)
    assert {"families", "pairs"} == set(listed)
    assert listed["families"][0]["hf"] == ["llama"]


def test_estimates_of_a_checkpoint(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "target", hidden=64)
    draft = write_tiny_hf(tmp_path / "draft", layers=1, vocab=310)
    result = hexgraft("models", folder, "--draft", draft, "--context", "256", "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["target"]["family"] == "llama"
    assert facts["target"]["context"] == 256
    assert facts["draft"]["vocabulary"] == 320
    assert any("padded to 320" in note for note in facts["draft"]["notes"])
    checkpoint = open_checkpoint(folder)
    export_bundle(checkpoint, tmp_path / "b", options=ExportOptions((1,), 256), report=lambda step: None)
    size = (tmp_path / "b" / "target" / "model.weights").stat().st_size
    sizes = {row["precision"]: row["weights"] for row in facts["target"]["estimates"]}
    assert sizes["fp32"] == size
    assert sizes["fp32"] > sizes["fp16"] > sizes["w8a16"] > sizes["w4a16"]
    # fp16 halves every weight, and the tied head lies beside the embedding.
    assert sizes["fp16"] == 2 * facts["target"]["parameters"] + 2 * 320 * 64
    assert facts["target"]["cache"] == 2 * 4 * 3 * 2 * 16 * 256 == estimate(checkpoint.config, 256).cache


def test_shows_a_checkpoint_and_its_notes(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "tiny-model")
    values = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 7}
    (folder / "config.json").write_text(json.dumps(values))
    result = hexgraft("models", folder)
    assert "tiny-model" in result.stdout
    assert "w4a16" in result.stdout
    assert "note: target: config.json stops at 7" in result.stderr
    exported = hexgraft("export", folder, "-o", tmp_path / "b", "--context", "64")
    assert exported.stdout == f"{tmp_path / 'b'}\n"
    assert "note: tiny-model: config.json stops at 7, generation_config.json at [0, 2]" in exported.stderr


def test_sampling_settings_of_the_authors_reach_the_bundle(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    settings = {"eos_token_id": 2, "temperature": 0.6, "top_k": 20, "top_p": "x", "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    export_bundle(
        open_checkpoint(folder), tmp_path / "b", options=ExportOptions((1,), 64), report=lambda step: None
    )
    tokenizer = open_bundle(tmp_path / "b").manifest.tokenizer
    assert tokenizer.generation == {"temperature": 0.6, "top_k": 20.0}
    (folder / "generation_config.json").write_text(json.dumps(settings | {"do_sample": False}))
    assert open_checkpoint(folder).tokenizer.generation["temperature"] == 0.0


def test_a_folder_without_a_config_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(hexgraft("models", ".")) == (
        f"{tmp_path / 'config.json'} is missing",
        "download the complete model folder",
    )


def test_a_draft_that_does_not_fit(tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target")
    result = hexgraft("models", target, "--draft", write_tiny_hf(tmp_path / "draft", vocab=270))
    assert error_of(result)[0].startswith("the draft has another vocabulary: it lacks 50 of")
    for option in (("--draft", target), ("--context", "64")):
        alone = hexgraft("models", *option)
        assert alone.exit_code == 2
        assert error_of(alone)[0] == f"{option[0]} goes with a CHECKPOINT"


@needs_qnn
def test_too_long_a_context_is_refused_for_a_chip_as_it_is_elsewhere(tmp_path: Path) -> None:
    target = write_tiny_hf(tmp_path / "target", context=512)
    options = ("-o", tmp_path / "b", "--context", "513", "--target", "htp", "--soc", "SM8650")
    message, _ = error_of(hexgraft("export", target, *options))
    assert message == "--context 513 is more than the 512 positions target is right for"


def test_a_context_is_that_of_an_export(tmp_path: Path) -> None:
    """Too much is refused as an export refuses it, and a shorter draft does not shorten the target's."""
    target = write_tiny_hf(tmp_path / "target", context=512)
    draft = write_tiny_hf(tmp_path / "draft", context=128)
    options = ("--context", "513")
    refused = error_of(hexgraft("models", target, *options))
    assert refused[0] == "--context 513 is more than the 512 positions target is right for"
    assert refused == error_of(hexgraft("export", target, "-o", tmp_path / "b", *options))
    facts = json.loads(hexgraft("models", target, "--draft", draft, "--json").stdout)
    assert [facts[role]["context"] for role in ("target", "draft")] == [512, 128]
    assert hexgraft("export", target, "-o", tmp_path / "b", "--draft", draft).exit_code == 0
    bundle = open_bundle(tmp_path / "b")
    assert [bundle.model(role).context for role in ("target", "draft")] == [512, 128]
