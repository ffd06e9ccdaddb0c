"""What an interrupted export is known by: the files its checkpoints are read from, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from htp_build import needs_qnn, no_space
from tiny import write_tiny_hf

from hexgraft.export.resume import checkpoint_facts
from hexgraft.host.cli.main import cli
from hexgraft.models.errors import ExportError


@needs_qnn
def test_an_export_into_its_checkpoints_folder_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own unfinished folder is there then, and so is a log of what it said."""
    checkpoint = write_tiny_hf(tmp_path / "target")
    monkeypatch.chdir(checkpoint)
    words = ["export", ".", "-o", "phone", "--widths", "1,8", "--context", "64", "--target", "htp"]
    words += ["--soc", "SM8650", "--host-widths", "none"]
    with monkeypatch.context() as patch:
        patch.setattr("hexgraft.export.htp.pipeline.write_manifest", no_space)
        first = CliRunner().invoke(cli, words)
        assert isinstance(first.exception, ExportError)
    Path("export.log").write_text(first.output, encoding="utf-8")
    again = CliRunner().invoke(cli, words)
    assert again.exit_code == 0, again.output
    for stage in ("float graphs", "target SM8650 fp16 target"):
        assert f"{stage}: finished by an earlier run" in again.output


def test_only_what_is_read_of_a_folder_counts(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "target")
    before = checkpoint_facts(folder)
    (folder / ".b.partial-1").mkdir()
    (folder / "export.log").write_text("said")
    (folder / "nowhere.json").symlink_to(folder / "gone.json")
    assert checkpoint_facts(folder) == before
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        with (folder / name).open("ab") as stream:
            stream.write(b" ")
        assert checkpoint_facts(folder) != before
        before = checkpoint_facts(folder)


def test_every_part_of_a_split_file_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m[1]-{number:05}-of-00002.gguf" for number in (1, 2)]
    for part in (*parts, tmp_path / "m[1]-00001-of-00003.gguf"):
        part.write_bytes(b"GGUF")
    before = checkpoint_facts(parts[0])
    assert len(before) == 2
    parts[1].write_bytes(b"GGUF, mended")
    assert checkpoint_facts(parts[0]) != before
    single = tmp_path / "single.gguf"
    single.write_bytes(b"GGUF")
    assert [Path(fact[0]) for fact in checkpoint_facts(single)] == [single]
