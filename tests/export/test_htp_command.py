"""`hexgraft export --target htp`: interrupted, failing its gate, searching, and refusing what cannot be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from htp_build import needs_qnn, short_text
from pair import make_pair, write_pair
from tiny import write_tiny_hf

from hexgraft.export.htp.parity import THRESHOLDS, Threshold
from hexgraft.export.htp.wrapper import binary_of
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import ExportError, HexgraftError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return make_pair(folder, noise=None, options=ExportOptions((1, 8), 128))


def export(checkpoint: Path, output: Path, *arguments: str) -> Result:
    words = ["export", str(checkpoint), "-o", str(output), "--widths", "1,8", "--context", "128"]
    return CliRunner().invoke(cli, [*words, "--target", "htp", *arguments])


def error_of(result: Result) -> HexgraftError:
    assert isinstance(result.exception, HexgraftError), result.output
    assert result.exception.hint
    return result.exception


@needs_qnn
def test_an_interrupted_export_goes_on_where_it_stopped(folder: Path, bundle: Bundle) -> None:
    """Killed while it compiles; the second run says what was finished, and makes a whole bundle."""
    output = folder / "npu"
    words = [
        "export",
        str(folder / "target-checkpoint"),
        "-o",
        str(output),
        "--widths",
        "1,8",
        "--context",
        "128",
    ]
    words += [
        "--target",
        "htp",
        "--soc",
        "SM8650",
        "--precision",
        "w8a16",
        "--calibration",
        str(short_text(folder)),
    ]
    code = "from hexgraft.host.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "compiling target_ar1" in line:
            break
    process.kill()
    process.wait()
    process.stderr.close()
    assert not output.exists()
    time.sleep(0.1)
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    said = result.output.splitlines()
    for stage in ("float graphs", "target calibration", "target graphs w8a16", "target SM8650 w8a16 target"):
        assert f"{stage}: finished by an earlier run" in said
    assert any("compiling target_ar8" in line for line in said)
    done = open_bundle(output)
    done.verify()
    names = {file.relative_to(output).as_posix() for file in output.rglob("*") if file.is_file()}
    assert names == {*done.manifest.files, "bundle.json"}
    assert list(folder.glob(".npu*")) == []
    figures = done.manifest.parity["target/htp/sm8650/w8a16/host/target_ar8_cl136.onnx"]
    assert figures["passed"] == 1
    assert figures["kl"] < 0.03
    shown = CliRunner().invoke(cli, ["inspect", str(output)])
    assert "agreement" in shown.output


@needs_qnn
def test_a_failing_gate_names_the_layer_and_force_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer 1's feed-forward at 4 bits, one scale a channel, with a poisoned column."""
    monkeypatch.setitem(THRESHOLDS, "w4a16", Threshold(0.99, 0.01, 1.01))
    from safetensors.numpy import load_file, save_file

    checkpoint = write_pair(tmp_path, noise=None).parent / "target-checkpoint"
    weights = load_file(checkpoint / "model.safetensors")
    matrix = weights["model.layers.1.mlp.down_proj.weight"].copy()
    matrix[:, 3] *= 3000
    weights["model.layers.1.mlp.down_proj.weight"] = matrix
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    arguments = [
        "--soc",
        "SM8650",
        "--precision",
        "w4a16",
        "--block",
        "0",
        "--keep",
        "layers.0,layers.2,layers.1.qkv,layers.1.o",
    ]
    arguments += ["--calibration", str(short_text(tmp_path)), "--parity-rows", "64"]
    error = error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert "target w4a16 fails the parity gate" in error.message
    assert "the feed-forward of layers.1" in error.message
    assert not (tmp_path / "out").exists()

    def full(*arguments: object) -> None:
        raise ExportError("no space left", "make some")

    with monkeypatch.context() as patch:
        patch.setattr("hexgraft.export.htp.pipeline.write_manifest", full)
        error = error_of(export(checkpoint, tmp_path / "out", *arguments, "--force"))
        assert error.message == "no space left"
    # What was forced then is not let through now.
    error = error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert "target w4a16 fails the parity gate" in error.message
    result = export(checkpoint, tmp_path / "out", *arguments, "--force")
    assert result.exit_code == 0, result.output
    parity = open_bundle(tmp_path / "out").manifest.parity
    assert {figures["passed"] for figures in parity.values()} == {0}


@needs_qnn
def test_what_another_attempt_compiled_is_not_in_the_bundle(
    folder: Path, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One attempt ends before its manifest is written, one behind that; the third has its own files alone."""
    checkpoint, output = folder / "target-checkpoint", tmp_path / "out"
    arguments = ["--soc", "SM8650", "--calibration", str(short_text(tmp_path)), "--host-widths", "8"]

    def full(*arguments: object) -> None:
        raise ExportError("no space left", "make some")

    rename = Path.rename

    def stuck(path: Path, to: Path) -> Path:
        if to == output:
            full()
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr("hexgraft.export.htp.pipeline.write_manifest", full)
        error_of(export(checkpoint, output, "--soc", "SM8650", "--host-widths", "8"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stuck)
        error_of(export(checkpoint, output, *arguments, "--precision", "w4a16"))
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
    folder: Path, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binaries of one graph, then a shared one, whose wrappers have the same names, then the first again."""
    checkpoint, output = folder / "target-checkpoint", tmp_path / "out"
    arguments = ["--soc", "SM8650", "--host-widths", "none"]

    def full(*arguments: object) -> None:
        raise ExportError("no space left", "make some")

    with monkeypatch.context() as patch:  # killed before anything is taken away
        patch.setattr("hexgraft.export.htp.pipeline._Export._seal", full)
        error_of(export(checkpoint, output, *arguments, "--unshared"))
        error_of(export(checkpoint, output, *arguments))
    result = export(checkpoint, output, *arguments, "--unshared")
    assert result.exit_code == 0, result.output
    for graph in open_bundle(output).target.graphs:
        if graph.htp is not None:
            assert binary_of(output / graph.file) == Path(graph.htp.binary).name


@needs_qnn
def test_the_search_keeps_no_more_than_it_must(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    """It ends at the first count that reaches the wanted agreement, and one fewer was not enough."""
    arguments = ["--soc", "SM8650", "--precision", "w4a16", "--parity-rows", "0", "--host-widths", "none"]
    checkpoint = folder / "target-checkpoint"
    result = export(checkpoint, tmp_path / "out", *arguments, "--min-agreement", "0.86")
    assert result.exit_code == 0, result.output
    found = {
        int(count): float(agreement)
        for count, agreement in re.findall(r"(\d+) kept higher: agreement ([\d.]+)%", result.output)
    }
    (kept,) = re.findall(r"^kept higher: (.+) \(", result.output, re.M)
    count = len(kept.split(", "))
    assert found[count] >= 86
    assert all(agreement < 86 for fewer, agreement in found.items() if fewer < count)
    assert count == 1 or count - 1 in found
    sizes = [(tmp_path / "out" / "target/htp/sm8650/w4a16/target.bin").stat().st_size]
    plain = export(checkpoint, tmp_path / "plain", *arguments)
    assert plain.exit_code == 0, plain.output
    sizes.append((tmp_path / "plain" / "target/htp/sm8650/w4a16/target.bin").stat().st_size)
    assert sizes[0] > sizes[1]


@needs_qnn
def test_a_search_that_finds_too_little_says_how_far_it_came(
    folder: Path, bundle: Bundle, tmp_path: Path
) -> None:
    arguments = ["--soc", "SM8650", "--precision", "w4a16", "--min-agreement", "1.0"]
    error = error_of(export(folder / "target-checkpoint", tmp_path / "no", *arguments))
    assert re.match(
        r"agreement reaches \d\d\.\d% with \d+ projections kept higher, 100.0% is wanted", error.message
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--soc", "SM8651"], "unknown SoC 'SM8651'"),
        ([], "--target htp needs a chip"),
        (["--soc", "SM8350"], "--precision fp16 needs fp16 arithmetic"),
        (
            ["--soc", "QCS6490", "--precision", "w8a16", "--keep", "layers.0:fp16"],
            "--keep with fp16 needs fp16",
        ),
        (
            ["--soc", "SM8650", "--precision", "w8a16", "--keep", "layers.0,layers.3.down:fp16"],
            "--keep 'layers.3.down' names no weight of this model",
        ),
        (["--soc", "SM8650", "--precision", "w8a16", "--keep", "fc"], "--keep 'fc' names no weight"),
        (["--soc", "SM8350", "--precision", "w4a16", "--block", "32"], "--block 32 needs fp16 arithmetic"),
        (["--soc", "SM8450"], "cannot share weights between graphs"),
        (["--soc", "SM8650", "--vtcm", "64"], "--vtcm 64 is more than the 8 MB"),
        (["--soc", "SM8650", "--host-widths", "4"], "--host-widths 4 is not among the widths 1, 8"),
        (["--soc", "SM8650", "--host-widths", "x"], "--host-widths 'x' is neither"),
        (["--soc", "SM8650", "--part-size", "0"], "--part-size is below 1 MB"),
        (["--soc", "SM8650", "--min-agreement", "0.9"], "--min-agreement is for quantised precisions"),
        (
            ["--soc", "SM8650", "--precision", "w8a16", "--context", "32"],
            "--context 32 is too short to calibrate w8a16 in",
        ),
        (["--soc", "SM8650", "--head", "w8"], "--head is for quantised precisions, not fp16"),
        (["--soc", "SM8650", "--calibration", __file__], "--calibration is for quantised precisions"),
        (["--soc", "SM8650", "--parity-rows", "0", "--parity", __file__], "--parity is for the parity gate"),
        (["--soc", "SM8650", "--host-widths", "none", "--parity", __file__], "--parity is for the parity"),
        (["--soc", "SM8650", "--host-widths", "none", "--parity-rows", "9"], "--parity-rows 9 is for the"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    folder: Path, bundle: Bundle, tmp_path: Path, arguments: list[str], words: str
) -> None:
    error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments))
    assert words in error.message
    assert list(tmp_path.iterdir()) == []


@needs_qnn
def test_an_export_that_finishes_nothing_leaves_nothing(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    arguments = ["--soc", "SM8650", "--context", "99999"]
    error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments))
    assert error.message.startswith("--context 99999 is more than")
    other = write_tiny_hf(tmp_path / "draft", vocab=270)
    arguments = ["--soc", "SM8650", "--draft", str(other)]
    error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments))
    assert "the draft has another vocabulary" in error.message
    assert list(tmp_path.iterdir()) == [other]


@needs_qnn
def test_a_search_is_made_again_for_another_text(
    folder: Path, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agreement is that of the text it was made on."""
    texts: list[list[int]] = []

    def search(network: object, bundle: object, precision: object, ranges: object, *more: object) -> object:
        texts.append(more[0])  # type: ignore[arg-type]
        return precision

    def full(*arguments: object) -> None:
        raise ExportError("no space left", "make some")

    monkeypatch.setattr("hexgraft.export.htp.pipeline.search_keeps", search)
    monkeypatch.setattr("hexgraft.export.htp.pipeline.write_manifest", full)
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--host-widths", "none", "--min-agreement", "0.9"]
    for more in ([], [], ["--parity", str(short_text(tmp_path))]):
        error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments, *more))
        assert error.message == "no space left"
    assert len(texts) == 2
    assert texts[0] != texts[1]


@needs_qnn
def test_of_a_corpus_the_beginning_is_read(
    folder: Path, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizing all of it would take 200 bytes of memory a byte."""
    lengths = []
    encode = TextCodec.encode_raw

    def noted(codec: TextCodec, text: str) -> list[int]:
        lengths.append(len(text))
        return encode(codec, text)

    monkeypatch.setattr(TextCodec, "encode_raw", noted)
    (tmp_path / "corpus.txt").write_text("the fox and the hound. " * 20_000, encoding="utf-8")
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--host-widths", "none"]
    arguments += ["--calibration", str(tmp_path / "corpus.txt")]
    result = export(folder / "target-checkpoint", tmp_path / "out", *arguments)
    assert result.exit_code == 0, result.output
    assert "calibrating on 1024 tokens" in result.output
    assert max(lengths) <= 65536


@needs_qnn
def test_a_calibration_text_that_is_none_is_refused(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("schöne Grüße ".encode("latin-1") * 500)
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--calibration", str(tmp_path / "latin.txt")]
    error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments))
    assert error.message == f"the calibration text {tmp_path / 'latin.txt'} is not UTF-8"
    assert error.hint is not None
    assert "iconv" in error.hint


@needs_qnn
def test_a_calibration_text_that_is_too_short_is_refused(
    folder: Path, bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--calibration", str(tmp_path / "short.txt")]
    error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments))
    assert "the calibration text has" in error.message


def test_options_of_the_npu_need_its_target(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    words = ["export", str(folder / "target-checkpoint"), "-o", str(tmp_path / "b"), "--soc", "SM8650"]
    error = error_of(CliRunner().invoke(cli, words))
    assert error.message == "--soc is for the NPU"
    assert error.hint == "add --target htp"


def test_without_the_provider_the_export_says_what_to_install(
    folder: Path, bundle: Bundle, tmp_path: Path
) -> None:
    """In a process of its own, where the module is hidden: all else works."""
    hide = "import sys; sys.modules['onnxruntime_qnn'] = None\n"
    hide += "import importlib.util as u; find = u.find_spec\n"
    hide += "u.find_spec = lambda name, *a: None if name == 'onnxruntime_qnn' else find(name, *a)\n"
    code = hide + "from hexgraft.host.cli.main import main; main()"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)

    checkpoint = str(folder / "target-checkpoint")
    refused = run("export", checkpoint, "-o", str(tmp_path / "n"), "--target", "htp", "--soc", "SM8650")
    assert refused.returncode == 2
    assert "--target htp needs onnxruntime-qnn" in refused.stderr
    assert "pip install 'hexgraft[htp]'" in refused.stderr or "x86-64 Linux" in refused.stderr
    plain = run(
        "export", checkpoint, "-o", str(tmp_path / "b"), "--widths", "1,8", "--context", "128", "--json"
    )
    assert plain.returncode == 0, plain.stderr
    ran = run("run", str(tmp_path / "b"), "-p", "hello", "--plain", "--max-tokens", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["tokens"]) == 2


def test_entries_of_the_npu_that_lack_their_binary_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bundle.path, tmp_path / "b", ignore=shutil.ignore_patterns("*.work*"))
    manifest = msgspec.to_builtins(bundle.manifest)
    manifest["target"]["graphs"].append(
        {
            "file": "target/model.onnx",
            "provider": "htp",
            "precision": "fp16",
            "width": 8,
            "capacity": 128,
            "htp": {"soc": "SM8650", "soc_model": 57, "arch": 75, "qairt": "v2", "binary": "target/none.bin"},
        }
    )
    (tmp_path / "b" / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(HexgraftError, match=r"a context binary that is not in the bundle: target/none\.bin"):
        open_bundle(tmp_path / "b")
    assert np.isfinite(bundle.target.context)
