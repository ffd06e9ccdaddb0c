"""Parts, wrappers, the compiling process, and the stages of an NPU export: what it makes and how it fails."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from htp_build import needs_qnn
from onnx import TensorProto, helper
from pair import make_pair

from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.parts import plan_parts, split
from hexgraft.export.htp.soc import find_soc, soc_table
from hexgraft.export.htp.stages import Stages, unfinished_folder
from hexgraft.export.htp.wrapper import check_whole
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle
from hexgraft.models.errors import ExportError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("compile"), noise=None, options=ExportOptions((1, 8), 128))


@pytest.fixture(scope="module")
def graph(bundle: Bundle) -> Path:
    """The static fp32 graph of 8 rows, beside its weights."""
    network = Network(bundle, "target")
    proto = network.static(8)
    file = network.folder / f"{proto.graph.name}.work.onnx"
    onnx.save(proto, file)
    return file


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
