"""Parts, wrappers, the compiling process, and the stages of an NPU export: what it makes and how it fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from htp_build import needs_qnn, short_text
from onnx import TensorProto, helper
from pair import make_pair, write_pair

from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.parity import THRESHOLDS, Threshold
from hexgraft.export.htp.parts import plan_parts, split
from hexgraft.export.htp.soc import find_soc, soc_table
from hexgraft.export.htp.stages import Stages, unfinished_folder
from hexgraft.export.htp.wrapper import check_whole
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.models.errors import ExportError, HexgraftError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return make_pair(folder, noise=None, options=ExportOptions((1, 8), 128))


@pytest.fixture(scope="module")
def graph(bundle: Bundle) -> Path:
    """The static fp32 graph of 8 rows, beside its weights."""
    network = Network(bundle, "target")
    proto = network.static(8)
    file = network.folder / f"{proto.graph.name}.work.onnx"
    onnx.save(proto, file)
    return file


def export(checkpoint: Path, output: Path, *arguments: str) -> Result:
    words = ["export", str(checkpoint), "-o", str(output), "--widths", "1,8", "--context", "128"]
    return CliRunner().invoke(cli, [*words, "--target", "htp", *arguments])


def error_of(result: Result) -> HexgraftError:
    assert isinstance(result.exception, HexgraftError), result.output
    assert result.exception.hint
    return result.exception


# ---------------------------------------------------------------------- parts


def test_one_part_where_all_fits() -> None:
    assert plan_parts(10, 4, 20, 20, 100) == []
    assert plan_parts(10, 4, 20, 20, 80) == []


@pytest.mark.parametrize("limit", [25, 30, 40, 70, 79])
def test_no_part_passes_the_limit(limit: int) -> None:
    cuts = plan_parts(10, 4, 20, 20, limit)
    sizes, at = [], 0
    pieces = [("embedded", 20), *((f"layers.{i}.out", 10) for i in range(4)), ("head", 20)]
    for name, size in pieces:
        at += size
        if name in cuts:
            sizes.append(at)
            at = 0
    assert max([*sizes, at]) <= limit
    assert len(sizes) == len(cuts) > 0


def test_parts_hold_every_node_and_pass_one_value(bundle: Bundle) -> None:
    network = Network(bundle, "target")
    whole = network.static(8)
    parts = split(whole, ["embedded", "layers.0.out", "layers.2.out"], 64, 8)
    shared = {"grouped_mask", "rope_cos", "rope_sin"}
    names = [node.name for part in parts for node in part.graph.node if node.name not in shared]
    assert sorted(names) == sorted(node.name for node in whole.graph.node if node.name not in shared)
    given = [[value.name for value in part.graph.output] for part in parts]
    assert given[0] == ["embedded"]
    assert given[1] == ["past_key_0_out", "past_value_0_out", "layers.0.out"]
    assert given[3] == ["logits"]
    taken = [{value.name for value in part.graph.input} for part in parts]
    assert "layers.0.out" in taken[2]
    assert "past_key_1_in" in taken[2]
    assert "past_key_0_in" not in taken[2]
    assert taken[3] == {"layers.2.out"}


# ------------------------------------------------------------------- compiling


@needs_qnn
def test_wrappers_are_old_enough_and_keep_their_names(graph: Path, tmp_path: Path) -> None:
    models = {"target_ar8_cl136": graph}
    done = compile_binary(models, tmp_path, "target", find_soc("SM8650"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["target.bin", "target_ar8_cl136.onnx"]
    proto = onnx.load(done.wrappers[0], load_external_data=False)
    assert proto.ir_version == 10
    assert {opset.domain: opset.version for opset in proto.opset_import} == {"": 21, "com.microsoft": 1}
    (node,) = proto.graph.node
    attributes = {attribute.name: attribute for attribute in node.attribute}
    assert attributes["ep_cache_context"].s == b"target.bin"
    assert attributes["embed_mode"].i == 0
    assert node.name.encode() in done.binary.read_bytes()
    assert proto.graph.name == "target_ar8_cl136"
    assert done.graphs[0].qairt.startswith("v2.")
    assert done.peak > 0
    assert done.seconds > 0


@needs_qnn
def test_fp16_compiles_where_the_table_says_so_and_nowhere_else(graph: Path, tmp_path: Path) -> None:
    """One chip of each architecture with fp16, and every one without."""
    by_arch = {soc.arch: soc for soc in soc_table() if soc.fp16}
    chosen = [*by_arch.values(), *(soc for soc in soc_table() if not soc.fp16)]
    for soc in chosen:
        (tmp_path / soc.name).mkdir()
        if soc.fp16:
            assert compile_binary({"g": graph}, tmp_path / soc.name, "g", soc).binary.stat().st_size > 0
            continue
        with pytest.raises(ExportError) as caught:
            compile_binary({"g": graph}, tmp_path / soc.name, "g", soc)
        assert "refuses the operator" in caught.value.message or soc.name in caught.value.message
        assert list((tmp_path / soc.name).iterdir()) == []


@needs_qnn
def test_an_operator_the_npu_refuses_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="layers.0.relu"),
        helper.make_node("Det", ["a"], ["y"], name="layers.0.det"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4, 4]) for name in "xa"]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    proto = helper.make_model(
        helper.make_graph(nodes, "odd", values[:1], [output]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    onnx.save(proto, tmp_path / "odd.onnx")
    (tmp_path / "out").mkdir()
    with pytest.raises(
        ExportError, match=r"the NPU refuses the operator Det of node layers\.0\.det"
    ) as caught:
        compile_binary({"odd": tmp_path / "odd.onnx"}, tmp_path / "out", "odd", find_soc("SM8650"))
    assert caught.value.hint
    assert list((tmp_path / "out").iterdir()) == []


def test_a_wrapper_with_a_node_left_on_the_cpu_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("EPContext", ["x"], ["a"], name="c", domain="com.microsoft"),
        helper.make_node("Relu", ["a"], ["y"], name="last"),
    ]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:])), tmp_path / "w.onnx")
    with pytest.raises(ExportError, match="the NPU refuses the operator Relu of node last"):
        check_whole(tmp_path / "w.onnx")


@needs_qnn
def test_a_compiler_that_is_killed_is_told(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = subprocess.Popen

    def killed(command: list[str], **arguments: Any) -> subprocess.Popen[bytes]:
        process = started(command, **arguments)
        os.kill(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr("hexgraft.export.htp.compile.subprocess.Popen", killed)
    with pytest.raises(ExportError, match=r"the compiler crashed \(SIGKILL\) at its start") as caught:
        compile_binary({"g": graph}, tmp_path, "g", find_soc("SM8650"))
    assert caught.value.hint is not None
    assert "goes on from here" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------- stages


def test_stages_run_once_for_a_key_and_again_for_another(tmp_path: Path) -> None:
    told: list[str] = []
    runs: list[str] = []

    def work(name: str) -> str:
        runs.append(name)
        return name

    for key in ("a", "a", "b"):
        stages = Stages(tmp_path, told.append)
        assert stages.run("one", key, lambda: work("one")) == "one"
        assert stages.run("two", [key, 2], lambda: work("two")) == "two"
    assert runs == ["one", "two", "one", "two"]
    assert told == ["one", "two"]


def test_a_stage_whose_files_are_gone_or_whose_record_is_cut_runs_again(tmp_path: Path) -> None:
    runs: list[int] = []
    for whole in (True, True, False):
        Stages(tmp_path, lambda name: None).run("s", 1, lambda: runs.append(1), lambda _, w=whole: w)
    assert len(runs) == 2
    (tmp_path / "stages.json").write_text('{"s": {"key"')
    Stages(tmp_path, lambda name: None).run("s", 1, lambda: runs.append(1))
    assert len(runs) == 3


def test_two_exports_to_one_name_do_not_mix(tmp_path: Path) -> None:
    with (
        unfinished_folder(tmp_path / "b"),
        pytest.raises(ExportError, match=r"another export to .* is running"),
        unfinished_folder(tmp_path / "b"),
    ):
        pass


# ------------------------------------------------------------- the command line


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
    result = export(checkpoint, tmp_path / "out", *arguments, "--force")
    assert result.exit_code == 0, result.output
    parity = open_bundle(tmp_path / "out").manifest.parity
    assert {figures["passed"] for figures in parity.values()} == {0}


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
        (["--soc", "SM8350", "--precision", "w4a16", "--block", "32"], "--block needs fp16 arithmetic"),
        (["--soc", "SM8450"], "cannot share weights between graphs"),
        (["--soc", "SM8650", "--vtcm", "64"], "--vtcm 64 is more than the 8 MB"),
        (["--soc", "SM8650", "--host-widths", "4"], "--host-widths 4 is not among the widths 1, 8"),
        (["--soc", "SM8650", "--host-widths", "x"], "--host-widths 'x' is neither"),
        (["--soc", "SM8650", "--part-size", "0"], "--part-size is below 1 MB"),
        (["--soc", "SM8650", "--min-agreement", "0.9"], "--min-agreement is for quantised precisions"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    folder: Path, bundle: Bundle, tmp_path: Path, arguments: list[str], words: str
) -> None:
    error = error_of(export(folder / "target-checkpoint", tmp_path / "out", *arguments))
    assert words in error.message
    assert list(tmp_path.iterdir()) == []


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
