"""`hexgraft export --target htp`: failing its gate, searching, and refusing what cannot be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import error_of, hexgraft, last_error_of
from htp_build import export, needs_qnn, no_space, short_text
from safetensors.numpy import load_file, save_file
from tiny import write_tiny_hf

from hexgraft.export.htp.parity import THRESHOLDS, Threshold
from hexgraft.host.bundle import open_bundle
from hexgraft.host.text import TextCodec


@needs_qnn
def test_a_failing_gate_names_the_layer_and_force_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layer 1's feed-forward at 4 bits, one scale a channel, with a poisoned column."""
    monkeypatch.setitem(THRESHOLDS, "w4a16", Threshold(0.99, 0.01, 1.01))
    checkpoint = write_tiny_hf(tmp_path / "target")
    weights = load_file(checkpoint / "model.safetensors")
    matrix = weights["model.layers.1.mlp.down_proj.weight"].copy()
    matrix[:, 3] *= 3000
    weights["model.layers.1.mlp.down_proj.weight"] = matrix
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    arguments = ["--soc", "SM8650", "--precision", "w4a16", "--block", "0"]
    arguments += ["--keep", "layers.0,layers.2,layers.1.qkv,layers.1.o"]
    arguments += ["--calibration", str(short_text(tmp_path)), "--parity-rows", "64"]
    message, _ = last_error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert "target w4a16 fails the parity gate" in message
    assert "the feed-forward of layers.1" in message
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        patch.setattr("hexgraft.export.htp.pipeline.write_manifest", no_space)
        forced = export(checkpoint, tmp_path / "out", *arguments, "--force")
        assert last_error_of(forced)[0] == "no space left"
    # What was forced then is not let through now.
    message, _ = last_error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert "target w4a16 fails the parity gate" in message
    result = export(checkpoint, tmp_path / "out", *arguments, "--force")
    assert result.exit_code == 0, result.output
    parity = open_bundle(tmp_path / "out").manifest.parity
    assert {figures["passed"] for figures in parity.values()} == {0}


@needs_qnn
def test_the_search_keeps_no_more_than_it_must(checkpoint: Path, tmp_path: Path) -> None:
    """It ends at the first count that reaches the wanted agreement, and one fewer was not enough."""
    arguments = ["--soc", "SM8650", "--precision", "w4a16", "--parity-rows", "0", "--host-widths", "none"]
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
def test_a_search_that_finds_too_little_says_how_far_it_came(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ["--soc", "SM8650", "--precision", "w4a16", "--min-agreement", "1.0"]
    message, _ = last_error_of(export(checkpoint, tmp_path / "no", *arguments))
    assert re.match(
        r"agreement reaches \d\d\.\d% with \d+ projections kept higher, 100.0% is wanted", message
    )


@needs_qnn
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
    checkpoint: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    message, _ = error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert words in message
    assert list(tmp_path.iterdir()) == []


@needs_qnn
def test_of_a_corpus_the_beginning_is_read(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    result = export(checkpoint, tmp_path / "out", *arguments)
    assert result.exit_code == 0, result.output
    assert "calibrating on 1024 tokens" in result.output
    assert max(lengths) <= 65536


@needs_qnn
def test_a_calibration_text_that_is_none_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("schöne Grüße ".encode("latin-1") * 500)
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--calibration", str(tmp_path / "latin.txt")]
    message, hint = last_error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert message == f"the calibration text {tmp_path / 'latin.txt'} is not UTF-8"
    assert "iconv" in hint


@needs_qnn
def test_a_calibration_text_that_is_too_short_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    arguments = ["--soc", "SM8650", "--precision", "w8a16", "--calibration", str(tmp_path / "short.txt")]
    message, _ = last_error_of(export(checkpoint, tmp_path / "out", *arguments))
    assert "the calibration text has" in message


def test_options_of_the_npu_need_its_target(checkpoint: Path, tmp_path: Path) -> None:
    result = hexgraft("export", checkpoint, "-o", tmp_path / "b", "--soc", "SM8650")
    assert error_of(result) == ("--soc is for the NPU", "add --target htp")


def test_without_the_provider_the_export_says_what_to_install(checkpoint: Path, tmp_path: Path) -> None:
    """In a process of its own, where the module is hidden: all else works."""
    hide = "import sys; sys.modules['onnxruntime_qnn'] = None\n"
    hide += "import importlib.util as u; find = u.find_spec\n"
    hide += "u.find_spec = lambda name, *a: None if name == 'onnxruntime_qnn' else find(name, *a)\n"
    code = hide + "from hexgraft.host.cli.main import main; main()"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)

    refused = run("export", str(checkpoint), "-o", str(tmp_path / "n"), "--target", "htp", "--soc", "SM8650")
    assert refused.returncode == 2
    assert "--target htp needs onnxruntime-qnn" in refused.stderr
    assert "pip install 'hexgraft[htp]'" in refused.stderr or "x86-64 Linux" in refused.stderr
    plain = run(
        "export", str(checkpoint), "-o", str(tmp_path / "b"), "--widths", "1,8", "--context", "128", "--json"
    )
    assert plain.returncode == 0, plain.stderr
    ran = run("run", str(tmp_path / "b"), "-p", "hello", "--plain", "--max-tokens", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["tokens"]) == 2
