"""Bundles: read when whole, and refused in words when altered, incomplete or inconsistent."""

from __future__ import annotations

import hashlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair import write_pair

from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import prefill
from hexgraft.models.errors import BundleError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "bundle"))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((path / "bundle.json").read_text())
    change(manifest)
    (path / "bundle.json").write_text(json.dumps(manifest))


def refusal(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_bundle(path).verify()
    assert caught.value.hint is not None
    assert "hexgraft" in caught.value.hint or "version" in caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_whole_bundle_opens(path: Path) -> None:
    bundle = open_bundle(path)
    done: list[int] = []
    bundle.verify(done.append)
    assert sum(done) == sum(entry.size for entry in bundle.manifest.files.values())
    assert bundle.draft is not None
    assert {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} == {
        "bundle.json",
        *bundle.manifest.files,
    }


def test_every_changed_byte_is_found(path: Path) -> None:
    for name in open_bundle(path).manifest.files:
        raw = (path / name).read_bytes()
        for place in {0, len(raw) // 2, len(raw) - 1}:
            (path / name).write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
            assert f"{name} is not the file that was exported: sha256 differs" in refusal(path)
        (path / name).write_bytes(raw)
    open_bundle(path).verify()


def test_missing_and_truncated_files_are_found_at_once(path: Path) -> None:
    file = path / "target" / "model.weights"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - 1)
    with pytest.raises(BundleError, match=f"has {size - 1} bytes, the bundle was made with {size}"):
        open_bundle(path)
    file.unlink()
    with pytest.raises(BundleError, match="is missing from the bundle"):
        open_bundle(path)


def test_what_is_no_bundle_is_named(path: Path, tmp_path: Path) -> None:
    assert "no bundle at" in refusal(tmp_path / "nothing")
    assert "no bundle at" in refusal(tmp_path)
    assert "no bundle at" in refusal(path / "tokenizer.json")


@pytest.mark.parametrize("version", [0, 1, 99])
def test_other_versions_are_refused(path: Path, version: int) -> None:
    edit(path, lambda m: m.update(format=version))
    assert f"has bundle format {version}, this hexgraft reads format" in refusal(path)


def test_a_later_version_is_named_although_its_fields_are_unknown(path: Path) -> None:
    (path / "bundle.json").write_text('{"format": 77, "everything": {"else": "is different"}}')
    assert "has bundle format 77" in refusal(path)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret",
        "target/../../secret",
        "a\\b",
        "a\0b",
        "",
        ".",
        "a//b",
        "a" * 300,
        "a/" * 1000 + "b",
        "bundle.json",
    ],
)
def test_names_outside_the_folder_are_refused(path: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("x")
    edit(path, lambda m: m["files"].update({name: {"size": 1, "sha256": "0" * 64}}))
    assert "which is no file in a bundle" in refusal(path)


@pytest.mark.parametrize("part", ["target/model.weights", "target", "tokenizer.json"])
def test_links_are_refused(path: Path, tmp_path: Path, part: str) -> None:
    """A link to a file or a folder, even with the right content, may lead anywhere tomorrow."""
    moved = tmp_path / "moved"
    (path / part).rename(moved)
    (path / part).symlink_to(moved)
    assert "is a link; a bundle holds plain files" in refusal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["target"].update(layers=0), "target has impossible sizes"),
        (lambda m: m["target"].update(context=10**12), "target has impossible sizes"),
        (lambda m: m["draft"].update(kv_heads=3), "draft has impossible sizes"),
        (lambda m: m["target"].update(widths=[8, 1]), "has widths"),
        (lambda m: m["target"].update(widths=[]), "has widths"),
        (lambda m: m["target"].update(kv_layout="x"), "unknown cache layout"),
        (lambda m: m["target"].update(kv_dtype="int4"), "unknown cache type"),
        (lambda m: m["target"].update(mask_value=0.0), "mask value"),
        (lambda m: m["target"].update(graphs=[]), "has no graphs"),
        (lambda m: m["provenance"].pop("draft"), "draft has no provenance"),
        (lambda m: m["target"]["graphs"][0].update(file="other.onnx"), "graph that is not in the bundle"),
        (lambda m: m["tokenizer"].update(file="other.json"), "tokenizer file that is not in the bundle"),
        (lambda m: m["tokenizer"].update(stop_tokens=[320]), "outside the vocabulary"),
        (lambda m: m["tokenizer"].update(bos=-1), "outside the vocabulary"),
        (lambda m: m["draft"].update(vocab=319), "the draft has 319 tokens, the target 320"),
        (lambda m: m.pop("tokenizer"), "is not a bundle manifest"),
        (lambda m: m.update(extra=1), "is not a bundle manifest"),
        (lambda m: m["target"].update(layers="3"), "is not a bundle manifest"),
    ],
)
def test_inconsistent_manifests_are_refused(
    path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edit(path, change)
    assert message in refusal(path)


def test_entries_of_the_npu_that_lack_their_binary_are_refused(path: Path) -> None:
    entry = {"soc": "SM8650", "soc_model": 57, "arch": 75, "qairt": "v2", "binary": "target/none.bin"}
    graph = {"file": "target/model.onnx", "provider": "htp", "precision": "fp16", "width": 8, "capacity": 256}
    edit(path, lambda m: m["target"]["graphs"].append({**graph, "htp": entry}))
    assert "a context binary that is not in the bundle: target/none.bin" in refusal(path)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 2},
        {"layers": 4},
        {"kv_heads": 1},
        {"vocab": 300},
        {"features": [3]},
        {"window": 64},
        {"local_rope": {"dim": 16, "frequencies": [1.0] * 8, "scale": 1.0}},
    ],
)
def test_a_graph_that_is_not_as_described_is_refused_before_it_runs(
    path: Path, change: dict[str, Any]
) -> None:
    edit(path, lambda m: m["target"].update(change))
    edit(path, lambda m: m.update(draft=None))
    bundle = open_bundle(path)
    with pytest.raises(BundleError, match="is not the graph that the bundle's manifest describes"):
        CpuSession(bundle)


def test_a_graph_the_runtime_cannot_read_is_refused(path: Path) -> None:
    (path / "target" / "model.onnx").write_bytes(b"\x08" * (path / "target" / "model.onnx").stat().st_size)
    with pytest.raises(BundleError, match="cannot load") as caught:
        CpuSession(open_bundle(path))
    assert "\n" not in caught.value.message


@settings(max_examples=60)
@given(data=st.data())
def test_no_manifest_makes_the_reader_crash(whole: Path, data: st.DataObject) -> None:
    """Bytes cut, changed or put in: a manifest is read or refused in words."""
    raw = (whole / "bundle.json").read_bytes()
    place = data.draw(st.integers(0, len(raw)))
    length = data.draw(st.integers(0, 4))
    fresh = data.draw(
        st.one_of(st.binary(max_size=4), st.sampled_from([b"-", b"9" * 30, b"[" * 5000, b"null"]))
    )
    (whole.parent / "fuzz").mkdir(exist_ok=True)
    folder = whole.parent / "fuzz"
    for name in ("target", "draft"):
        if not (folder / name).exists():
            shutil.copytree(whole / name, folder / name)
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(whole / name, folder / name)
    (folder / "bundle.json").write_bytes(raw[:place] + fresh + raw[place + length :])
    with suppress(BundleError):
        open_bundle(folder)


def test_another_vocabulary_than_the_manifests_is_refused(path: Path) -> None:
    file = path / "tokenizer.json"
    value = json.loads(file.read_text(encoding="utf-8"))
    vocab = value["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    fresh = json.dumps(value)
    file.write_text(fresh, encoding="utf-8")

    def seal(manifest: dict[str, Any]) -> None:
        digest = hashlib.sha256(fresh.encode()).hexdigest()
        manifest["files"]["tokenizer.json"] = {"size": len(fresh.encode()), "sha256": digest}

    edit(path, seal)
    with pytest.raises(BundleError, match="has not the vocabulary that the manifest was made of") as caught:
        open_bundle(path).verify()
    assert caught.value.hint


def test_a_context_beyond_any_text_takes_no_memory(path: Path) -> None:
    """Tables and masks are made as far as a text goes."""
    edit(path, lambda m: m["target"].update(context=1 << 24))
    edit(path, lambda m: m.update(draft=None))
    bundle = open_bundle(path)
    tracemalloc.start()
    session = CpuSession(bundle)
    for _ in prefill(session, [5] * 600, 0, 600):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert session._cache.capacity == 768
