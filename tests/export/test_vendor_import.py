"""`hexgraft import`: what is made of a vendor's folder, and what is refused in words."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from vendor_export import VendorExport, write_vendor_export

from hexgraft.export.foreign.importer import ImportOptions, import_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.manifest import VENDOR_LAYOUT
from hexgraft.models.errors import BundleError, CheckpointError, ExportError


def make(folder: Path, path: Path, **options: Any) -> list[str]:
    said: list[str] = []
    import_bundle(folder, path, options=ImportOptions(**options), report=lambda step: None, say=said.append)
    return said


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> VendorExport:
    """Two parts, everything at the border quantised, 96 columns at 1 and 8 rows."""
    folder = tmp_path_factory.mktemp("vendor")
    return write_vendor_export(folder, widths=(1, 8), columns=96, cuts=("layers.0.out",), border=True)


def test_what_a_killed_import_left_is_no_part_of_the_next(export: VendorExport, tmp_path: Path) -> None:
    """Not even where all are process 1, as in containers."""
    leftover = tmp_path / f".bundle.partial-{os.getpid()}"
    (leftover / "target").mkdir(parents=True)
    (leftover / "target" / "old.onnx").write_bytes(b"of another model")
    make(export.folder, tmp_path / "bundle")
    assert "target/old.onnx" not in open_bundle(tmp_path / "bundle").manifest.files
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_bundle_says_all_that_graphs_need(export: VendorExport, tmp_path: Path) -> None:
    said = make(export.folder, tmp_path / "bundle")
    assert said[1] == "8 rows over 88 slots: prompt_ar8_cl96_1_of_2, prompt_ar8_cl96_2_of_2"
    bundle = open_bundle(tmp_path / "bundle")
    bundle.verify()
    target = bundle.target
    assert (target.kv_layout, target.kv_dtype, target.widths, target.context) == (
        VENDOR_LAYOUT,
        "uint8",
        [1, 8],
        88,
    )
    assert (target.layers, target.kv_heads, target.head_dim, target.vocab) == (3, 2, 16, 320)
    assert target.mask_value == pytest.approx(-50)
    for i, entry in enumerate(target.kv_encodings):
        for kind, found in (("key", entry.key), ("value", entry.value)):
            code = export.codes[f"past_{kind}_{i}"]
            assert (found.dtype, found.zero) == ("uint8", code.zero)
            assert found.scale == pytest.approx(code.scale)
    graphs = {(graph.width, graph.vendor.part): graph for graph in target.graphs if graph.vendor}
    assert sorted(graphs) == [(1, 0), (1, 1), (8, 0), (8, 1)]
    assert {graph.capacity for graph in target.graphs} == {95, 88}
    last = graphs[8, 1].vendor
    assert last is not None
    assert sorted(last.encodings) == ["attention_mask", "logits", "position_ids_cos", "position_ids_sin"]
    assert not last.last_logits


def test_the_command(export: VendorExport, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["import", str(export.folder), "-o", str(tmp_path / "b"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bundle"] == str(tmp_path / "b")
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "b")], env={"COLUMNS": "200"})
    assert "vendor (past CL - T), 96 columns in every width, uint8 K/V, scales 0.0" in shown.stdout
    assert "part 2 of 2" in shown.stdout
    ran = CliRunner().invoke(
        cli, ["run", str(tmp_path / "b"), "-p", "abab", "--raw", "--max-tokens", "5", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    assert len(json.loads(ran.stdout)["tokens"]) == 5
    again = CliRunner().invoke(cli, ["import", str(export.folder), "-o", str(tmp_path / "b")])
    assert isinstance(again.exception, ExportError)
    assert "exists already" in again.exception.message


def test_float_graphs_and_narrower_widths(tmp_path: Path) -> None:
    made = write_vendor_export(tmp_path, widths=(1, 8, 16), columns=64, cuts=(), quantised=False)
    make(made.folder, tmp_path / "bundle", widths=(1, 8))
    target = open_bundle(tmp_path / "bundle").target
    assert (target.kv_dtype, target.kv_encodings, target.mask_value) == ("float32", [], -100)
    assert (target.widths, target.context, target.graphs[0].precision) == ([1, 8], 56, "fp32")
    with pytest.raises(ExportError, match="no graphs of 32 rows"):
        make(made.folder, tmp_path / "other", widths=(32,))


def test_what_its_own_files_say_beside_the_graphs(export: VendorExport, tmp_path: Path) -> None:
    """Where they disagree, and under what licence it is, as of any checkpoint."""
    folder = copied(export, tmp_path / "m")
    (folder / "README.md").write_text("---\nlicense: llama3.2\n---\n# Card\n")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"eos_token_id": 7}))
    said = make(folder, tmp_path / "bundle")
    assert any(line.startswith("note: config.json stops at 7") for line in said)
    assert open_bundle(tmp_path / "bundle").manifest.provenance["target"].license == "llama3.2"


def test_a_cache_longer_than_the_model_is_right_for(export: VendorExport, tmp_path: Path) -> None:
    folder = copied(export, tmp_path / "m")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"max_position_embeddings": 87}))
    with pytest.raises(ExportError, match=r"a cache of 88 slots, .* is right for 87 positions") as caught:
        make(folder, tmp_path / "bundle")
    assert caught.value.hint == "choose a shorter --context-length"
    (folder / "config.json").write_text(json.dumps(values | {"max_position_embeddings": 88}))
    make(folder, tmp_path / "bundle")


def test_one_of_several_context_lengths(tmp_path: Path) -> None:
    made = write_vendor_export(tmp_path / "a", widths=(1, 8), columns=64, cuts=("embedded",))
    for file in made.folder.glob("*cl64_2*.onnx"):
        shutil.copy(file, tmp_path / file.name)  # the folder's embedding serves both lengths
    longer = write_vendor_export(tmp_path / "b", widths=(1, 8), columns=96, cuts=("embedded",))
    for file in tmp_path.glob("*.onnx"):
        shutil.copy(file, longer.folder / file.name)
    make(longer.folder, tmp_path / "long")
    make(longer.folder, tmp_path / "short", context_length=64)
    assert [open_bundle(tmp_path / name).target.context for name in ("long", "short")] == [88, 56]
    with pytest.raises(ExportError, match="no graphs of context length 80") as caught:
        make(longer.folder, tmp_path / "none", context_length=80)
    assert caught.value.hint == "there are 64, 96"


def copied(export: VendorExport, folder: Path) -> Path:
    shutil.copytree(export.folder, folder)
    return folder


def edited(file: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    proto = onnx.load(file)
    change(proto)
    onnx.save(proto, file)


def renamed(proto: onnx.ModelProto, old: str, new: str) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        if value.name == old:
            value.name = new
    for node in proto.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def test_what_is_refused(export: VendorExport, tmp_path: Path) -> None:
    out = tmp_path / "bundle"

    def refused(folder: Path, words: str, **options: Any) -> None:
        with pytest.raises((ExportError, CheckpointError), match=words) as caught:
            make(folder, out, **options)
        assert caught.value.hint
        assert not out.exists()

    refused(tmp_path / "nowhere", "there is no folder")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "file is a file")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds neither .onnx graphs nor .bin")

    folder = copied(export, tmp_path / "missing-part")
    (folder / "prompt_ar8_cl96_1_of_2.onnx").unlink()
    refused(folder, "0 graphs could be part 1 at 8 rows")

    folder = copied(export, tmp_path / "native")
    edited(
        folder / "prompt_ar1_cl96_2_of_2.onnx",
        lambda p: renamed(p, "past_key_1_in", "past_nativekvcache__key_1_in"),
    )
    refused(folder, "keeps its cache inside")

    folder = copied(export, tmp_path / "embeds")
    edited(folder / "prompt_ar1_cl96_1_of_2.onnx", lambda p: renamed(p, "input_ids", "inputs_embeds"))
    refused(folder, "takes embedded tokens")

    folder = copied(export, tmp_path / "unknown")
    edited(folder / "prompt_ar1_cl96_1_of_2.onnx", lambda p: renamed(p, "position_ids_cos", "swa_cos"))
    refused(folder, "0 graphs could be part 1|takes swa_cos")

    folder = copied(export, tmp_path / "scales")

    def rescale(proto: onnx.ModelProto) -> None:
        for tensor in proto.graph.initializer:
            if tensor.name == "past_key_0_in:scale":
                tensor.CopyFrom(numpy_helper.from_array(np.array(0.5, np.float32), tensor.name))

    edited(folder / "prompt_ar8_cl96_1_of_2.onnx", rescale)
    refused(folder, "is quantised otherwise than past_key_0 elsewhere")

    folder = copied(export, tmp_path / "other-model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    refused(folder, "the graphs of 1 rows have no past_key_3_in")
    (folder / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    refused(folder, r"past_key_0_in is uint8 \[2, 1, 16, 95\], expected uint8 \[4, 1, 16, 95\]")
    (folder / "config.json").unlink()
    refused(folder, "has no config.json")
    make(folder, out, checkpoint=export.folder)
    assert open_bundle(out).target.context == 88


def test_graphs_that_do_not_explain_themselves(export: VendorExport, tmp_path: Path) -> None:
    folder = copied(export, tmp_path / "symbolic")

    def symbolic(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"

    edited(folder / "prompt_ar1_cl96_1_of_2.onnx", symbolic)
    with pytest.raises(ExportError, match="input_ids has no fixed size"):
        make(folder, tmp_path / "bundle")

    folder = copied(export, tmp_path / "bare")
    bare = helper.make_graph(
        [helper.make_node("Identity", ["past_key_0_in"], ["past_key_0_out"])],
        "bare",
        [helper.make_tensor_value_info("past_key_0_in", TensorProto.UINT8, [2, 1, 16, 95])],
        [helper.make_tensor_value_info("past_key_0_out", TensorProto.UINT8, [2, 1, 16, 95])],
    )
    onnx.save(helper.make_model(bare), folder / "prompt_ar1_cl96_1_of_2.onnx")
    with pytest.raises(ExportError, match="nothing says what the integers of past_key_0_in mean"):
        make(folder, tmp_path / "bundle")
    (folder / "prompt_ar1_cl96_1_of_2.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportError, match="cannot be read as an ONNX graph") as caught:
        make(folder, tmp_path / "bundle")
    assert caught.value.hint is not None
    (folder / "prompt_ar1_cl96_1_of_2.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match="holds no graph"):
        make(folder, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.update(kv_layout="rows first"), "unknown cache layout"),
        (lambda t: t.update(kv_dtype="bfloat16"), "unknown cache type"),
        (lambda t: t["kv_encodings"].pop(), "cache encodings of 2 layers, it has 3"),
        (lambda t: t["kv_encodings"][1]["key"].update(scale=-1), "impossible cache encoding in layer 1"),
        (lambda t: t["kv_encodings"][1]["value"].update(zero=300), "impossible cache encoding in layer 1"),
        (lambda t: t["graphs"].pop(), "not every part of the graph of 8 rows"),
        (lambda t: t["graphs"][0].update(capacity=90), "columns"),
        (lambda t: t["graphs"][0].update(vendor=None), "does not say which part it is"),
        (lambda t: t.update(context=96), "has 96 slots, its widest graph addresses 88"),
        (lambda t: t["widths"].append(64), "has cpu graphs of the widths"),
        (lambda t: t.update(window=16), "has windows"),
        (lambda t: t["graphs"][0]["vendor"]["encodings"].update(x=1), "not a bundle manifest"),
        (
            lambda t: t["graphs"][0]["vendor"]["encodings"]["attention_mask"].update(zero=7),
            "impossible encoding of attention_mask at 1 rows",
        ),
    ],
)
def test_a_bundle_of_this_layout_is_checked(
    export: VendorExport, tmp_path: Path, change: Callable[[Any], None], words: str
) -> None:
    make(export.folder, tmp_path / "bundle")
    file = tmp_path / "bundle" / "bundle.json"
    manifest = json.loads(file.read_text())
    change(manifest["target"])
    file.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=words):
        open_bundle(tmp_path / "bundle")


def test_our_own_layout_has_none_of_it(export: VendorExport, tmp_path: Path) -> None:
    shutil.copytree(export.bundle.path, tmp_path / "own")
    file = tmp_path / "own" / "bundle.json"
    manifest = json.loads(file.read_text())
    manifest["target"]["graphs"][0]["vendor"] = {}
    file.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="has graphs of another cache layout"):
        open_bundle(tmp_path / "own")
