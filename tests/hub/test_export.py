"""`hexgraft export --via aihub` against the stand-in: the bundle it makes, and what is sent for it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command import error_of, hexgraft, last_error_of
from htp_build import random_text, short_text
from hub_service import HubServer, fail_once
from tiny import write_tiny_hf

from hexgraft.export.hub.pack import Packed
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.hub.book import BOOK
from hexgraft.host.hub.service import ModelFacts, Service
from hexgraft.host.manifest import GraphEntry

COMMON = ("--widths", "1,8", "--context", "64")
GATED = ("--parity-rows", "24")
VIA = ("--via", "aihub", "--soc", "SM8650")


def export(checkpoint: Path, output: Path, *more: str | Path) -> Bundle:
    done = hexgraft("export", checkpoint, "-o", output, *COMMON, *more)
    assert done.exit_code == 0, done.stderr
    return open_bundle(output)


def decode(bundle: Bundle) -> list[int]:
    """Twelve tokens with trees on the emulator."""
    session = open_session(bundle, "target", "htp-sim", widths=(1, 8), whole=True)
    drafter = make_drafter("lookup", bundle, lambda: session)
    decoder = Decoder(session, drafter, DecodeOptions(max_tokens=12, tree_size=8))
    prompt = random_text(10, seed=3)
    decoder.begin(prompt + prompt)
    return [token for current in decoder.rounds() for token in current.tokens]


def first_logits(bundle: Bundle) -> Any:
    from hexgraft.host.session import causal

    session = open_session(bundle, "target", "htp-sim", widths=(8,), whole=True)
    try:
        return session.forward([5, 9, 11], range(3), causal(0, 3)).logits(2)
    finally:
        session.close()


def without_release(graph: GraphEntry) -> Any:
    return graph.file, graph.provider, graph.precision, graph.width, graph.capacity, graph.htp


@pytest.mark.parametrize("precision", ["fp16", "w8a16"])
def test_the_bundle_is_the_local_compilers(
    precision: str, account: HubServer, checkpoint: Path, tmp_path: Path
) -> None:
    """Entries, files, wrappers and every logit; and it decodes with trees on the emulator."""
    more = ["--precision", precision, *GATED]
    if precision != "fp16":
        more += ["--calibration", str(short_text(tmp_path))]
    local = export(checkpoint, tmp_path / "local", "--target", "htp", "--soc", "SM8650", *more)
    hosted = export(checkpoint, tmp_path / "hosted", *VIA, "--host-widths", "1,8", *more)
    assert list(map(without_release, hosted.target.graphs)) == list(map(without_release, local.target.graphs))
    assert set(hosted.manifest.files) == {*local.manifest.files, "hub.json"}
    hosted.verify()
    for graph in hosted.target.graphs[1:]:
        ours, theirs = (
            onnx.load(bundle.file(graph.file), load_external_data=False).graph for bundle in (hosted, local)
        )
        assert [value.SerializeToString() for value in ours.input] == [
            value.SerializeToString() for value in theirs.input
        ]
        assert {value.name for value in ours.output} == {value.name for value in theirs.output}
        assert ours.node[0].name.encode() in hosted.file(graph.htp.binary).read_bytes()
    assert hosted.manifest.parity.keys() == local.manifest.parity.keys() != set()
    np.testing.assert_array_equal(first_logits(hosted), first_logits(local))
    assert decode(hosted) == decode(local)


def test_each_graph_is_compiled_once_and_linked_into_one_binary(
    account: HubServer, checkpoint: Path, tmp_path: Path
) -> None:
    bundle = export(checkpoint, tmp_path / "b", *VIA)
    compiling, linking = account.of_kind("compile_job"), account.of_kind("link_job")
    assert [len(compiling), len(linking)] == [2, 1]
    assert len(linking[0].models.models) == 2
    assert {job.devices.devices[0].name for job in compiling} == {"Samsung Galaxy S24"}
    for job, name in zip(compiling, ("target_ar1_cl65", "target_ar8_cl72"), strict=True):
        assert f"context_enable_graphs={name};" in job.options
        assert "--target_runtime qnn_dlc --qairt_version 2.51 --output_names logits," in job.options
    assert [graph.provider for graph in bundle.target.graphs] == ["cpu", "htp", "htp"]
    assert bundle.manifest.parity == {}
    records = json.loads((bundle.path / "hub.json").read_text(encoding="utf-8"))
    (binary,) = records["binaries"]
    assert binary["model_id"] == linking[0].target_model.model_id
    assert [job["job_id"] for job in binary["jobs"]] == list(account.jobs)
    assert all(job["url"].endswith(f"/jobs/{job['job_id']}/") for job in binary["jobs"])
    assert list(tmp_path.glob(".b*")) == []


def test_parts_pass_values_under_plain_names(account: HubServer, tmp_path: Path) -> None:
    large = write_tiny_hf(tmp_path / "large", hidden=128, ffn=256, layers=10, head_dim=32)
    wished = ("--widths", "8", "--context", "64", "--part-size", "1", "--host-widths", "8")
    for name, more in (("parts", VIA), ("local", ("--target", "htp", "--soc", "SM8650"))):
        done = hexgraft("export", large, "-o", tmp_path / name, *wished, "--parity-rows", "0", *more)
        assert done.exit_code == 0, done.stderr
    parts, local = (open_bundle(tmp_path / name) for name in ("parts", "local"))
    assert max(graph.htp.parts for graph in parts.target.graphs if graph.htp) == 4
    assert [len(account.of_kind(kind)) for kind in ("compile_job", "link_job")] == [4, 4]
    np.testing.assert_array_equal(first_logits(parts), first_logits(local))


def test_what_is_uploaded_is_one_folder_in_a_zip(
    account: HubServer, checkpoint: Path, tmp_path: Path
) -> None:
    export(checkpoint, tmp_path / "b", *VIA)
    uploads = [model for model in account.models.values() if model.file_upload_complete]
    assert [model.is_directory for model in uploads] == [True, True]
    with zipfile.ZipFile(account.workshop.file(uploads[0].model_id)) as archive:
        assert archive.namelist() == ["target_ar1_cl65.onnx/model.onnx", "target_ar1_cl65.onnx/model.data"]
    assert sum(line.startswith("PUT /upload") for line in account.seen) == 2 * 2  # in two pieces each


def test_packing_is_the_same_every_time_and_moves_no_weight(checkpoint: Path, tmp_path: Path) -> None:
    assert hexgraft("export", checkpoint, "-o", tmp_path / "b").exit_code == 0
    file = open_bundle(tmp_path / "b").file("target/model.onnx")
    first, second = (Packed(file, "graph") for _ in range(2))
    assert first.digest == second.digest
    assert first.write(tmp_path).read_bytes() == second.write(tmp_path).read_bytes()
    with zipfile.ZipFile(tmp_path / "graph.onnx.zip") as archive:
        archive.extractall(tmp_path / "out")
    ours, theirs = (onnx.load(path) for path in (file, tmp_path / "out" / "graph.onnx" / "model.onnx"))
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in theirs.graph.initializer}
    for tensor in ours.graph.initializer:
        np.testing.assert_array_equal(stored[tensor.name], onnx.numpy_helper.to_array(tensor))


def test_a_release_that_is_not_told_is_the_one_asked_for(
    account: HubServer, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service names the release among a model's properties, or leaves it out."""
    facts = Service.facts

    def untold(self: Service, model_id: str) -> ModelFacts:
        return ModelFacts(facts(self, model_id).graphs)

    monkeypatch.setattr(Service, "facts", untold)
    bundle = export(checkpoint, tmp_path / "b", *VIA, "--host-widths", "8", *GATED)
    assert {graph.htp.qairt for graph in bundle.target.graphs if graph.htp} == {"2.51"}


def test_a_device_by_name_means_its_chip(account: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    bundle = export(checkpoint, tmp_path / "b", "--via", "aihub", "--device", "samsung galaxy s25")
    assert {graph.htp.soc for graph in bundle.target.graphs if graph.htp} == {"SM8750"}
    assert account.of_kind("link_job")[0].device.name == "Samsung Galaxy S25"


def test_a_chip_without_fp16_and_sharing(account: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    """All-integer graphs, a binary each, and nothing said of fp16; one link job serves phone and emulator."""
    more = ("--precision", "w8a16", "--calibration", short_text(tmp_path), "--unshared", "--vtcm", "2")
    device = ("--via", "aihub", "--device", "RB3 Gen 2")
    bundle = export(checkpoint, tmp_path / "b", *device, "--host-widths", "8", *GATED, *more)
    options = {job.options for kind in ("compile_job", "link_job") for job in account.of_kind(kind)}
    assert [len(account.of_kind(kind)) for kind in ("compile_job", "link_job")] == [2, 2]
    assert not any("FLOAT16" in text for text in options)
    assert all("default_graph_htp_vtcm_size=2" in text for text in options)
    assert [(graph.provider, graph.width) for graph in bundle.target.graphs[1:]] == [
        ("htp", 1),
        ("htp", 8),
        ("htp-sim", 8),
    ]
    assert bundle.manifest.parity


def test_dry_run_says_which_jobs_would_run_and_sends_nothing(
    account: HubServer, checkpoint: Path, tmp_path: Path
) -> None:
    arguments = ("export", checkpoint, "-o", tmp_path / "b", *COMMON, *VIA)
    done = hexgraft(*arguments, "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "3 of 3 jobs would be submitted" in done.stderr
    assert all(word in done.stdout for word in ("compile", "link", "target_ar8_cl72", "Samsung Galaxy S24"))
    said = json.loads(hexgraft(*arguments, "--dry-run", "--json").stdout)
    assert [(job["kind"], job["state"]) for job in said["jobs"]] == [
        ("compile", "new"),
        ("compile", "new"),
        ("link", "new"),
    ]
    assert all(job["upload"] > 400_000 for job in said["jobs"][:2])
    assert account.jobs == {}
    assert not any(line.startswith(("POST", "PUT", "PATCH")) for line in account.seen)
    assert not (tmp_path / "b").exists()
    assert hexgraft(*arguments).exit_code == 0
    assert [job.name for job in account.of_kind("compile_job")] == [
        f"hexgraft {job['title']} {key}" for job, key in zip(said["jobs"][:2], _keys(account), strict=True)
    ]


def _keys(account: HubServer) -> list[str]:
    return [job.name.rsplit(" ", 1)[1] for job in account.of_kind("compile_job")]


def test_dry_run_without_an_account(checkpoint: Path, tmp_path: Path) -> None:
    done = hexgraft("export", checkpoint, "-o", tmp_path / "b", *COMMON, *VIA, "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "there is no AI Hub token" in done.stderr
    assert "3 of 3 jobs would be submitted" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--device", "S24"), "--device is for AI Hub", "add --via aihub"),
        (("--dry-run",), "--dry-run is for AI Hub", "add --via aihub"),
        (("--via", "aihub"), "--via aihub needs a device or a chip", "SM8650"),
        (
            ("--via", "aihub", "--target", "cpu", "--soc", "SM8650"),
            "not for the CPU",
            "leave out --target cpu",
        ),
        (("--via", "aihub", "--device", "Samsung Galxy S24"), "AI Hub has no device", "Samsung Galaxy S24"),
        (("--via", "aihub", "--soc", "SM8950"), "AI Hub has no device with SM8950", "hub devices"),
        (("--via", "aihub", "--device", "Toaster of the Future"), "not in our table", "--soc"),
        (("--via", "aihub", "--device", "Samsung Galaxy S25", "--soc", "SM8650"), "not SM8650", "leave out"),
        (("--via", "aihub", "--soc", "SM8650", "--qairt", "2.13"), "does not offer QAIRT 2.13", "2.40, 2.51"),
        (
            ("--via", "aihub", "--soc", "SM8650", "--qairt", "2.40", "--host-widths", "1"),
            "would compile with QAIRT 2.40",
            "leave out --host-widths",
        ),
        (("--via", "aihub", "--device", "RB3 Gen 2"), "needs fp16 arithmetic", "w8a16"),
        (("--via", "aihub", "--soc", "SM8650", *GATED), "needs graphs for the emulator", "add --host-widths"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_paid(
    arguments: tuple[str, ...], message: str, hint: str, account: HubServer, checkpoint: Path, tmp_path: Path
) -> None:
    done = hexgraft("export", checkpoint, "-o", tmp_path / "b", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert hint in done.stderr.rsplit("hint: ", 1)[1]
    assert account.jobs == {}


def test_without_a_token_one_sentence_says_where_to_put_it(checkpoint: Path, tmp_path: Path) -> None:
    message, hint = error_of(hexgraft("export", checkpoint, "-o", tmp_path / "b", *VIA))
    assert message == f"there is no AI Hub token: {tmp_path / 'nowhere.ini'} does not exist"
    assert hint == "put it into ~/.qai_hub/client.ini: qai-hub configure --api_token TOKEN"


def test_a_compiled_graph_that_lost_its_names_is_refused(
    account: HubServer, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service calls outputs output_0 and so on unless it is told their names."""
    import hub_jobs

    parse = hub_jobs.parse
    monkeypatch.setattr(hub_jobs, "parse", lambda text: {**parse(text), "output_names": ""})
    message, _ = last_error_of(hexgraft("export", checkpoint, "-o", tmp_path / "b", *COMMON, *VIA))
    assert "holds no graph target_ar1_cl65" in message
    assert "logits is gone" in message
    assert not (tmp_path / "b").exists()


def test_the_book_is_beside_the_unfinished_bundle(
    account: HubServer, checkpoint: Path, tmp_path: Path
) -> None:
    place = ("export", checkpoint, "-o", tmp_path / "b", *COMMON, *VIA)
    fail_once(account, "target_ar8", "the graph is cursed", *place)
    book = json.loads((tmp_path / ".b.unfinished" / BOOK).read_text(encoding="utf-8"))
    assert len(book["uploads"]) == 2
    assert {job["job_id"] for job in book["jobs"].values()} == set(account.jobs)


def test_it_needs_no_compiler_here(account: HubServer, checkpoint: Path, tmp_path: Path) -> None:
    """On a machine that cannot have onnxruntime-qnn, calibration included."""
    code = (
        "import sys; sys.modules['onnxruntime_qnn'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'onnxruntime_qnn' else find(name, *a)\n"
        "from hexgraft.host.cli.main import main; main()"
    )
    text = short_text(tmp_path)
    wished = ("--widths", "1,8", "--context", "64", "--precision", "w8a16", "--calibration", str(text))
    command = [sys.executable, "-c", code, "export", str(checkpoint), "-o", str(tmp_path / "b"), *wished]
    for more, words in (("--host-widths", "1"), "needs onnxruntime-qnn"), ((), "made by QAIRT v2.51"):
        done = subprocess.run([*command, *VIA, *more], capture_output=True, text=True)
        assert done.returncode == (2 if more else 0), done.stderr
        assert words in done.stderr
    assert "AI Hub compiles with QAIRT 2.40: the runtime on the phone must be of that release" in done.stderr
    assert all("--qairt_version" not in job.options for job in account.of_kind("compile_job"))
    open_bundle(tmp_path / "b").verify()


def test_files_by_s3_s_own_protocol(
    account: HubServer, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's other way to move files, with short-lived credentials in place of presigned addresses."""
    account.credentials = True
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{account.storage.server_port}")
    bundle = export(checkpoint, tmp_path / "b", *VIA)
    bundle.verify()
    assert {line.split("/")[0] for line in account.seen if "/shelf/" in line} == {"PUT ", "HEAD ", "GET "}
    assert not any("/upload/" in line or line.startswith("GET /download") for line in account.seen)
