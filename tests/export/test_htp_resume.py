"""`hexgraft export --target htp` after one that did not end: what is gone on with, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import hexgraft, last_error_of, spawn
from htp_build import export, export_words, needs_qnn, no_space, short_text
from tiny import write_tiny_hf

from hexgraft.export.htp.wrapper import binary_of
from hexgraft.host.bundle import open_bundle


@needs_qnn
def test_an_interrupted_export_goes_on_where_it_stopped(checkpoint: Path, tmp_path: Path) -> None:
    """Killed while it compiles; the second run says what was finished, and makes a whole bundle."""
    output = tmp_path / "npu"
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--calibration", str(short_text(tmp_path))]
    with spawn(*export_words(checkpoint, output, *arguments)) as process:
        assert process.stderr is not None
        assert any(b"compiling target_ar1" in line for line in process.stderr)
        process.kill()
    assert not output.exists()
    result = export(checkpoint, output, *arguments)
    assert result.exit_code == 0, result.output
    said = result.output.splitlines()
    for stage in ("float graphs", "target calibration", "target graphs w8a16", "target SM8650 w8a16 target"):
        assert f"{stage}: finished by an earlier run" in said
    assert any("compiling target_ar8" in line for line in said)
    done = open_bundle(output)
    done.verify()
    names = {file.relative_to(output).as_posix() for file in output.rglob("*") if file.is_file()}
    assert names == {*done.manifest.files, "bundle.json"}
    assert list(tmp_path.glob(".npu*")) == []
    figures = done.manifest.parity["target/htp/sm8650/w8a16/host/target_ar8_cl136.onnx"]
    assert figures["passed"] == 1
    assert figures["kl"] < 0.03
    assert "agreement" in hexgraft("inspect", output).stdout


@needs_qnn
def test_what_another_attempt_compiled_is_not_in_the_bundle(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attempt ends before its manifest is written, one behind that; the third has its own files alone."""
    output = tmp_path / "out"
    arguments = ["--soc", "SM8650", "--calibration", str(short_text(tmp_path)), "--host-widths", "8"]
    rename = Path.rename

    def stuck(path: Path, to: Path) -> Path:
        if to == output:
            no_space()
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr("hexgraft.export.htp.pipeline.write_manifest", no_space)
        first = export(checkpoint, output, "--soc", "SM8650", "--host-widths", "8")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stuck)
        second = export(checkpoint, output, *arguments, "--precision", "w4a16")
    for failed in (first, second):
        assert last_error_of(failed)[0] == "no space left"
    assert list((tmp_path / ".out.unfinished" / "bundle").rglob("*.bin"))
    result = export(checkpoint, output, *arguments, "--precision", "w8a16")
    assert result.exit_code == 0, result.output
    done = open_bundle(output)
    done.verify()
    names = {file.relative_to(output).as_posix() for file in output.rglob("*") if file.is_file()}
    assert names == {*done.manifest.files, "bundle.json"}
    assert not any("fp16" in name or "w4a16" in name for name in names)
    assert [path for path in output.rglob("*") if path.is_dir() and not any(path.iterdir())] == []


@needs_qnn
def test_wrappers_are_those_of_the_binaries_beside_them(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binaries of one graph, then a shared one, whose wrappers have the same names, then the first again."""
    output = tmp_path / "out"
    arguments = ["--soc", "SM8650", "--host-widths", "none"]
    with monkeypatch.context() as patch:  # killed before anything is taken away
        patch.setattr("hexgraft.export.htp.pipeline._Export._seal", no_space)
        for more in (["--unshared"], []):
            assert last_error_of(export(checkpoint, output, *arguments, *more))[0] == "no space left"
    result = export(checkpoint, output, *arguments, "--unshared")
    assert result.exit_code == 0, result.output
    compiled = [graph for graph in open_bundle(output).target.graphs if graph.htp is not None]
    assert compiled
    for graph in compiled:
        assert graph.htp is not None
        assert binary_of(output / graph.file) == Path(graph.htp.binary).name


@needs_qnn
def test_a_search_is_made_again_for_another_text(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agreement is that of the text it was made on."""
    texts: list[list[int]] = []

    def search(network: object, bundle: object, precision: object, ranges: object, *more: object) -> object:
        texts.append(more[0])  # type: ignore[arg-type]
        return precision

    monkeypatch.setattr("hexgraft.export.htp.pipeline.search_keeps", search)
    monkeypatch.setattr("hexgraft.export.htp.pipeline.write_manifest", no_space)
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--host-widths", "none", "--min-agreement", "0.9"]
    for more in ([], [], ["--parity", str(short_text(tmp_path))]):
        failed = export(checkpoint, tmp_path / "out", *arguments, *more)
        assert last_error_of(failed)[0] == "no space left"
    assert len(texts) == 2
    assert texts[0] != texts[1]


@needs_qnn
def test_an_export_that_finishes_nothing_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    long = export(checkpoint, output, "--soc", "SM8650", "--context", "99999")
    assert last_error_of(long)[0].startswith("--context 99999 is more than")
    other = write_tiny_hf(tmp_path / "draft", vocab=270)
    foreign = export(checkpoint, output, "--soc", "SM8650", "--draft", str(other))
    assert "the draft has another vocabulary" in last_error_of(foreign)[0]
    assert list(tmp_path.iterdir()) == [other]
