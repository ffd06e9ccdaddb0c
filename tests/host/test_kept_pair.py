"""The demonstration bundle in the cache: used again while its head is the one that hexgraft comes with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from heads import write_head
from tiny import write_tiny_hf

from hexgraft.host.bundle import Bundle
from hexgraft.models import shipped_heads
from hexgraft.models.errors import BundleError
from hexgraft.models.shipped_heads import SMOLLM2_HEAD, SMOLLM2_HEAD_PRECISION, SMOLLM2_PAIR, shipped_origin

MAKERS = [("hexgraft.host.cli.demo", "_bundle"), ("benchmarks.smollm2", "smollm2_pair")]


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny head in the shipped one's place, for a tiny model in SmolLM2's."""
    target = write_tiny_hf(tmp_path / "target", layers=4)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    head = write_head(tmp_path / "heads" / SMOLLM2_HEAD, target, rows=100, own_head=False)
    (head / "acceptance.json").write_text('{"by_depth_and_rank": [[0.5]]}')
    monkeypatch.setenv("HEXGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped_heads, "_FOLDER", tmp_path / "heads")
    for module, _ in MAKERS:
        monkeypatch.setattr(import_module(module), "fetch_smollm2", lambda **ignored: target)
    return head


@pytest.mark.parametrize(("module", "name"), MAKERS)
@pytest.mark.parametrize("file", ["acceptance.json", "model.safetensors"])
def test_it_is_remade_when_the_head_changes(
    shipped: Path, tmp_path: Path, module: str, name: str, file: str
) -> None:
    make: Callable[[], Bundle] = getattr(import_module(module), name)
    first = make()
    manifest = first.path / "bundle.json"
    assert first.manifest.provenance["draft"].checkpoint == shipped_origin(SMOLLM2_HEAD)
    written = manifest.stat().st_mtime_ns
    assert make().digest == first.digest
    assert manifest.stat().st_mtime_ns == written

    if file == "acceptance.json":
        (shipped / file).write_text('{"by_depth_and_rank": [[0.25]]}')
    else:
        other = write_head(tmp_path / "other", tmp_path / "target", rows=100, own_head=False, seed=3)
        shutil.copy(other / file, shipped / file)
    second = make()
    assert second.path == first.path == tmp_path / "cache" / "bundles" / SMOLLM2_PAIR
    assert second.digest != first.digest
    assert second.manifest.provenance["draft"].checkpoint == shipped_origin(SMOLLM2_HEAD)
    second.verify()
    assert make().digest == second.digest


@pytest.mark.parametrize(("module", "name"), MAKERS)
def test_it_is_remade_when_the_head_s_precision_is_another(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    make: Callable[[], Bundle] = getattr(import_module(module), name)
    with monkeypatch.context() as before:
        before.setattr(import_module(module), "SMOLLM2_HEAD_PRECISION", "fp32")
        assert make().graph("draft", "cpu").precision == "fp32"
    bundle = make()
    assert bundle.graph("draft", "cpu").precision == SMOLLM2_HEAD_PRECISION
    bundle.verify()


def test_benchmarks_measure_no_graphs_of_earlier_code(shipped: Path) -> None:
    make: Callable[[], Bundle] = getattr(import_module(MAKERS[1][0]), MAKERS[1][1])
    manifest = make().path / "bundle.json"
    os.utime(manifest, (1e9, 1e9))
    assert make().path / "bundle.json" == manifest
    assert manifest.stat().st_mtime > 1.1e9


def test_a_damaged_one_is_said_to_be(shipped: Path) -> None:
    make: Callable[[], Bundle] = getattr(import_module(MAKERS[0][0]), MAKERS[0][1])
    path = make().path
    tokens = path / "target" / "head.tokens"
    tokens.write_bytes(tokens.read_bytes()[::-1])
    with pytest.raises(BundleError) as caught:
        make()
    assert caught.value.message.startswith("the cached ")
    assert caught.value.hint == f"remove it and run again: rm -r {path}"
