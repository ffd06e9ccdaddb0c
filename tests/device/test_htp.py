"""The runner on the Hexagon emulator: context binaries, static graphs, no node on the CPU."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from htp_build import needs_qnn
from pair import write_pair
from phones import wait_until
from random_tree import random_tree

from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.htp.session import HtpSession
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.runner.wire import RunnerError
from hexgraft.host.session import Session, causal, tree_visibility
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import BundleError, DecodeError

pytestmark = needs_qnn
CAPACITY = 128
WIDTHS = (1, 8, 16)


def export(
    folder: Path, precision: str, *, part_mb: int = 512, capacities: tuple[int, ...] = (), **sizes: Any
) -> Bundle:
    """A tiny target compiled for the emulator; no binaries for phones would be loadable here."""
    write_pair(folder, noise=None, options=ExportOptions(WIDTHS, CAPACITY), **sizes)
    plan = HtpOptions(find_socs(("SM8650",)), make_precision(precision), parity_rows=0)
    export_htp(
        open_checkpoint(folder / "target-checkpoint"),
        folder / "npu",
        draft=None,
        options=ExportOptions(WIDTHS, CAPACITY),
        htp=dataclasses.replace(plan, part_bytes=part_mb << 20, capacities=capacities),
        report=lambda step: None,
        say=lambda words: None,
    )
    return open_bundle(folder / "npu")


@pytest.fixture(scope="module", params=["fp16", "w8a16"])
def htp_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def session(htp_bundle: Bundle, runner: LocalRunner) -> Iterator[RunnerSession]:
    session = RunnerSession(runner.connection, str(htp_bundle.path), provider="htp")
    yield session
    session.close()


def assert_same_passes(ours: Session, theirs: Session, atol: float) -> None:
    """Random trees, a branch of each kept."""
    rng = np.random.default_rng(4)
    committed = 0
    for size in (8, 1, 5, 7):
        mask, depths = random_tree(rng, size)
        tokens = rng.integers(0, 320, size).tolist()
        positions = [committed + d for d in depths]
        visible = tree_visibility(committed, mask)
        mine, other = (s.forward(tokens, positions, visible) for s in (ours, theirs))
        assert other.width == mine.width
        for row in range(size):
            np.testing.assert_allclose(other.logits(row), mine.logits(row), rtol=0, atol=atol)
        branch = np.flatnonzero(mask[-1]).tolist()
        for s in (ours, theirs):
            s.store(branch, range(committed, committed + len(branch)))
        committed += len(branch)
    np.testing.assert_allclose(theirs.save(committed).keys, ours.save(committed).keys, rtol=0, atol=atol)


def test_load_says_what_runs(session: RunnerSession) -> None:
    assert session.spec.provider == "runner-htp"
    assert session.spec.widths == WIDTHS
    assert session.spec.capacity == CAPACITY
    assert session.loaded.memory in ("plain", "QnnHtpShared")


def test_trees_match_the_emulator_in_python(session: RunnerSession, htp_bundle: Bundle) -> None:
    local = HtpSession(htp_bundle)
    assert_same_passes(local, session, atol=1e-5)
    local.close()


def test_fp16_is_near_the_cpu(htp_bundle: Bundle, session: RunnerSession) -> None:
    if htp_bundle.target.graphs[-1].precision == "fp16":
        assert_same_passes(CpuSession(htp_bundle, widths=WIDTHS, whole=True), session, atol=0.2)


def test_same_rounds_as_the_emulator_in_python(session: RunnerSession, htp_bundle: Bundle) -> None:
    local = HtpSession(htp_bundle)
    rounds: list[list[Round]] = []
    for target in (local, session):
        options = DecodeOptions(max_tokens=12, tree_size=8)
        decoder = Decoder(target, make_drafter("lookup", htp_bundle, lambda: local), options)
        decoder.begin([40, 51, 7, 40, 51])
        rounds.append(list(decoder.rounds()))
    for mine, other in zip(*rounds, strict=True):
        assert other.tokens == mine.tokens
        assert other.tree.tokens.tolist() == mine.tree.tokens.tolist()
    local.close()


def test_parts_run_one_after_the_other(tmp_path: Path, runner: LocalRunner) -> None:
    sizes = {"hidden": 128, "ffn": 256, "layers": 10, "head_dim": 32}
    bundle = export(tmp_path, "fp16", part_mb=1, **sizes)
    assert sum(g.provider == "htp-sim" and g.width == 8 for g in bundle.target.graphs) > 1
    local, remote = HtpSession(bundle), RunnerSession(runner.connection, str(bundle.path), provider="htp")
    assert_same_passes(local, remote, atol=1e-5)
    remote.close()
    local.close()
    manifest = json.loads((bundle.path / "bundle.json").read_text())
    graphs = manifest["target"]["graphs"]
    graphs.remove(next(g for g in graphs if g["provider"] == "htp-sim" and g["htp"].get("part") == 1))
    (bundle.path / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="parts of an htp graph are not all there"):
        RunnerSession(runner.connection, str(bundle.path), provider="htp")


def test_the_cache_grows_from_one_capacity_to_the_next(tmp_path: Path, runner: LocalRunner) -> None:
    """Plain decoding and trees over 20 + 80 tokens, through 32, 64 and 128 slots, as the session in Python;
    and on the CPU through the same capacities."""
    bundle = export(tmp_path, "fp16", capacities=(32, 64, CAPACITY))
    place, connection = str(bundle.path), runner.connection
    remote = RunnerSession(connection, place, provider="htp")
    assert remote.spec.capacity == CAPACITY
    pairs: list[tuple[CpuSession, RunnerSession]] = [(HtpSession(bundle), remote)]
    cpu = RunnerSession(connection, place, widths=WIDTHS, whole=True)
    pairs.append((CpuSession(bundle, widths=WIDTHS, whole=True), cpu))
    for ours, theirs in pairs:
        texts: list[list[int]] = []
        for session in (ours, theirs):
            decoder = Decoder(session, Lookup(), DecodeOptions(max_tokens=80, tree_size=8))
            decoder.begin([40, 51, 7, 40, 51] * 4)
            texts.append([token for current in decoder.rounds() for token in current.tokens])
        assert texts[0] == texts[1]
        assert len(texts[0]) == 80
        assert theirs.stats()["models"][theirs.name]["capacity"] == CAPACITY
        theirs.reset()
        theirs.forward([1], [0], causal(0, 1))
        assert theirs.stats()["models"][theirs.name]["capacity"] == 32
        ours.close()
        theirs.close()


def test_a_capacity_without_a_graph_is_refused(
    htp_bundle: Bundle, runner: LocalRunner, tmp_path: Path
) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(htp_bundle.path, place)
    manifest = json.loads((place / "bundle.json").read_text())
    model = manifest["target"]
    model["capacities"] = [64, CAPACITY]
    model["graphs"][-1]["capacity"] = 64
    (place / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="not every width has an htp graph for each capacity"):
        RunnerSession(runner.connection, str(place), provider="htp")
    model["capacities"] = [CAPACITY, 64]
    (place / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="capacities are not ascending numbers up to the context"):
        RunnerSession(runner.connection, str(place), provider="htp")


def test_widths_and_builds_can_be_chosen(htp_bundle: Bundle, runner: LocalRunner) -> None:
    place, connection = str(htp_bundle.path), runner.connection
    session = RunnerSession(connection, place, provider="htp", widths=[8], soc="SM8650")
    assert session.spec.widths == (8,)
    with pytest.raises(DecodeError):
        session.forward([1] * 9, [0] * 9, tree_visibility(0, np.eye(9, dtype=np.bool_)))
    session.close()
    with pytest.raises(BundleError, match="one htp graph for each width"):
        RunnerSession(connection, place, provider="htp", widths=[4])
    with pytest.raises(BundleError, match="for that chip and precision"):
        RunnerSession(connection, place, provider="htp", soc="SM8750")
    with pytest.raises(BundleError, match="for that chip and precision"):
        RunnerSession(connection, place, provider="htp", precision="w4a16")


def test_the_raised_clock_is_given_back_while_nobody_asks(htp_bundle: Bundle, binary: Path) -> None:
    """What it does to clocks only a chip shows: the provider takes the mode, and passes stay the same."""
    runner = LocalRunner(binary, options=["--rest", "100"])
    session = RunnerSession(runner.connection, str(htp_bundle.path), provider="htp")

    def resting(*operations: dict[str, Any]) -> bool:
        return bool(session.send([*operations, {"op": "stats"}])[-1]["models"]["target"]["resting"])

    def rests() -> bool:
        time.sleep(0.3)
        return resting()

    forward = session.operation("forward", tokens=[5, 6, 7], positions=[0, 1, 2], prefix=0)
    before = session.forward([5, 6, 7], [0, 1, 2], causal(0, 3)).logits(2)
    assert wait_until(rests, 30)
    assert not resting(forward)
    assert wait_until(rests, 30)
    after = session.forward([5, 6, 7], [0, 1, 2], causal(0, 3)).logits(2)
    np.testing.assert_array_equal(before, after)
    runner.close()


def test_unknown_options_are_refused(htp_bundle: Bundle, runner: LocalRunner) -> None:
    options = {"backend_path": "/tmp/x.so"}
    with pytest.raises(DecodeError, match="backend_path"):
        RunnerSession(runner.connection, str(htp_bundle.path), provider="htp", options=options)


def test_damaged_contexts_are_bundle_errors(htp_bundle: Bundle, runner: LocalRunner, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(htp_bundle.path, place)
    binaries = list(place.rglob("*.bin"))
    assert binaries
    for binary in binaries:
        binary.write_bytes(b"\0" * binary.stat().st_size)
    with pytest.raises(BundleError, match="cannot load"):
        RunnerSession(runner.connection, str(place), provider="htp")
    for binary in binaries:
        binary.unlink()
    with pytest.raises(BundleError, match="is missing"):
        RunnerSession(runner.connection, str(place), provider="htp")


def test_provider_that_is_none(htp_bundle: Bundle, binary: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "libplugin.so"
    plugin.write_bytes(b"no library")
    runner = LocalRunner(binary, qnn=plugin)
    with pytest.raises(RunnerError, match="cannot be used"):
        RunnerSession(runner.connection, str(htp_bundle.path), provider="htp")
    runner.close()
