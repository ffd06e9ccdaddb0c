"""The emulator's session: the same results as the CPU's, and every way it can fail told in words."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from htp_build import calibrated, calibration_of, cpu_session, needs_qnn, quantised_file, random_text
from pair import write_pair

from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import Precision, make_precision
from hexgraft.export.htp.soc import find_soc, find_socs
from hexgraft.export.writer import ExportOptions
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.htp.runtime import HtpRuntime
from hexgraft.host.htp.session import HtpSession, choose_chains
from hexgraft.host.session import causal
from hexgraft.host.traces.replay import Figures, measure, prefill_passes, replay
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import BundleError, DecodeError, UsageError

WIDTHS = (1, 8, 16)


def export_pair(
    folder: Path, precision: str, *socs: str, sizes: dict[str, int] | None = None, **changes: Any
) -> Bundle:
    """A tiny pair exported for `socs`; the first one's graphs run on the emulator. With `sizes`, a target of
    those alone."""
    folder.mkdir(exist_ok=True)
    write_pair(folder, options=ExportOptions(WIDTHS, 128), noise=None if sizes else 0.1, **(sizes or {}))
    plan = HtpOptions(
        find_socs(socs),
        make_precision(precision),
        parity_rows=0,
        calibration=calibration_of(precision, folder),
    )
    export_htp(
        open_checkpoint(folder / "target-checkpoint"),
        folder / "npu",
        draft=None if sizes else open_checkpoint(folder / "draft-checkpoint"),
        options=ExportOptions(WIDTHS, 128),
        htp=dataclasses.replace(plan, **changes),
        report=lambda step: None,
        say=lambda words: None,
    )
    return open_bundle(folder / "npu")


@pytest.fixture(scope="module")
def fp16(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_pair(tmp_path_factory.mktemp("fp16"), "fp16", "SM8650", "SM8750")


@pytest.fixture(scope="module")
def w8a16(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """For a chip without fp16 first: the all-integer graphs run."""
    return export_pair(tmp_path_factory.mktemp("w8a16"), "w8a16", "SM7750", "SM8850")


def decode(bundle: Bundle, backend: str, drafter: str, prompt: list[int]) -> tuple[list[int], list[float]]:
    """8 tokens, and the margin between the two best logits at each."""
    target = open_session(bundle, "target", backend, widths=WIDTHS, whole=True)
    drafting = open_session(bundle, "draft", backend, widths=WIDTHS, whole=True)
    options = DecodeOptions(max_tokens=8, tree_size=8 if drafter != "none" else 1, margins=True)
    decoder = Decoder(target, make_drafter(drafter, bundle, lambda: drafting), options)
    decoder.begin(prompt)
    tokens, margins = [], []
    for current in decoder.rounds():
        tokens += current.tokens
        margins += current.margins
    target.close()
    drafting.close()
    return tokens, margins


@needs_qnn
@pytest.mark.parametrize("build", ["fp16", "w8a16"])
def test_trees_on_the_emulator_give_its_plain_text(build: str, request: pytest.FixtureRequest) -> None:
    bundle = request.getfixturevalue(build)
    prompt = random_text(20)
    assert decode(bundle, "htp-sim", "levels", prompt)[0] == decode(bundle, "htp-sim", "none", prompt)[0]


@needs_qnn
def test_trees_on_the_emulator_give_the_cpus_text_but_for_ties(fp16: Bundle) -> None:
    prompt = random_text(20, seed=4)
    ours, margins = decode(fp16, "cpu", "none", prompt)
    theirs, _ = decode(fp16, "htp-sim", "levels", prompt)
    for token, other, margin in zip(ours, theirs, margins, strict=True):
        if token != other:
            assert margin < 0.05
            break


@needs_qnn
@pytest.mark.parametrize(("build", "error"), [("fp16", 0.1), ("w8a16", 1.5)])
def test_logits_and_cache_follow_the_cpus(build: str, error: float, request: pytest.FixtureRequest) -> None:
    """Over prefill, single rows and scratch slots, at every compiled width."""
    bundle = request.getfixturevalue(build)
    cpu, npu = CpuSession(bundle, widths=WIDTHS, whole=True), HtpSession(bundle)
    assert npu.spec == dataclasses.replace(cpu.spec, provider="htp-sim")
    tokens = random_text(31)
    try:
        start = 0
        for count in (16, 1, 7, 1, 6):
            places = range(start, start + count)
            for session in (cpu, npu):
                rows = session.forward(tokens[start : start + count], places, causal(start, count))
                session.store(range(count), places)
                assert rows.width == next(width for width in WIDTHS if width >= count)
            ours, theirs = cpu._staging.at(rows.width), npu._staging.at(rows.width)
            np.testing.assert_allclose(theirs.logits[0, :count], ours.logits[0, :count], atol=error, rtol=0)
            start += count
        assert np.abs(npu.save(31).keys - cpu.save(31).keys).max() < error
    finally:
        npu.close()


@needs_qnn
def test_several_chips_and_their_facts_are_in_the_manifest(w8a16: Bundle) -> None:
    graphs = [graph for graph in w8a16.target.graphs if graph.htp is not None]
    device = [graph for graph in graphs if graph.provider == "htp"]
    assert [(g.htp.soc, g.width) for g in device if g.htp] == [
        (soc, width) for soc in ("SM7750", "SM8850") for width in WIDTHS
    ]
    assert {g.htp.binary for g in device if g.htp} == {
        "target/htp/sm7750/w8a16-integer/target.bin",
        "target/htp/sm8850/w8a16/target.bin",
    }
    assert all(g.htp.shared and g.htp.qairt for g in device if g.htp)
    simulated = [graph for graph in graphs if graph.provider == "htp-sim"]
    assert [(g.htp.soc, g.width, g.htp.shared) for g in simulated if g.htp] == [
        ("SM7750", width, False) for width in WIDTHS
    ]
    assert all(g.htp.mask_value is not None and -500 < g.htp.mask_value <= -50 for g in simulated if g.htp)
    w8a16.verify()


@needs_qnn
@pytest.mark.parametrize("precision", ["fp16", "w8a16"])
def test_a_model_in_parts_computes_the_same(precision: str, tmp_path: Path) -> None:
    sizes = {"hidden": 128, "ffn": 256, "layers": 10, "head_dim": 32}
    options = {"host_widths": (8,), "sizes": sizes}
    bundles = [
        export_pair(tmp_path / name, precision, "SM8650", part_bytes=size << 20, **options)
        for name, size in (("whole", 64), ("parts", 1))
    ]
    logits = []
    for bundle, parts in zip(bundles, (1, 4 if precision == "fp16" else 2), strict=True):
        assert [len(chain) for chain in choose_chains(bundle, "target").values()] == [parts]
        device = [graph for graph in bundle.target.graphs if graph.provider == "htp" and graph.width == 16]
        assert [graph.htp.part for graph in device if graph.htp] == list(range(parts))
        session = HtpSession(bundle)
        logits.append(session.forward([1, 2, 3], range(3), causal(0, 3)).logits(2))
        session.close()
    np.testing.assert_array_equal(*logits)


@needs_qnn
@pytest.mark.parametrize(
    "precision",
    [make_precision("w4a16"), make_precision("w4a16", block=0), make_precision("w8a16", embed="w8")],
    ids=["w4-block", "w4-channel", "w8"],
)
def test_the_npu_computes_what_the_quantised_graph_says(precision: Precision, tmp_path: Path) -> None:
    """The same QDQ graph on the CPU and on the emulator, at several widths. Three things came out at -12 to
    2 dB here without a word from anyone: 4-bit weights without zero points, an fp16 product before an integer
    projection (at 16 rows only), one initializer under two encodings."""
    bundle = open_bundle(write_pair(tmp_path, noise=None, options=ExportOptions(WIDTHS, 128)))
    network, ranges = calibrated(bundle)
    files = {
        width: quantised_file(network, ranges, precision, width, f"w{width}") for width in (1, 8, 16, 32)
    }
    soc, tokens = find_soc("SM8650"), random_text(33, seed=5)
    for width, file in files.items():
        wrappers = compile_binary({f"g{width}": file}, tmp_path, f"g{width}", soc).wrappers
        runtime = HtpRuntime({(width, 128): wrappers}, {"soc_model": str(soc.soc_model)})
        npu = CpuSession(bundle, widths=[width], whole=True, runtime=runtime)
        figures = Figures()
        passes = prefill_passes(tokens, min(32, 2 * width), width)
        for pair in replay(passes, cpu_session(bundle, file, width), npu):
            figures.add(measure(pair))
        runtime.close()
        assert figures.sqnr_db > 30, width


@needs_qnn
def test_a_crash_of_the_library_is_told_and_takes_nothing_down(fp16: Bundle) -> None:
    session = HtpSession(fp16, widths=[1])
    session.forward([1], [0], causal(0, 1))
    os.kill(session._remote.process.pid, signal.SIGSEGV)
    with pytest.raises(DecodeError, match=r"process crashed \(SIGSEGV\) while running the graph of 1 rows"):
        session.forward([1], [0], causal(0, 1))
    session.close()
    with pytest.raises(DecodeError, match="closed"):
        session.forward([1], [0], causal(0, 1))


@needs_qnn
def test_loading_a_shared_binary_here_crashes_into_a_clear_error(fp16: Bundle) -> None:
    graph = next(graph for graph in fp16.target.graphs if graph.provider == "htp" and graph.width == 1)
    runtime = HtpRuntime({(1, 128): [fp16.file(graph.file)]}, {"soc_model": "57"})
    session = CpuSession(fp16, widths=[1], whole=True, runtime=runtime)
    with pytest.raises(DecodeError, match="while loading the graph of 1 rows") as caught:
        session.forward([1], [0], causal(0, 1))
    assert caught.value.hint is not None
    assert "share weights" in caught.value.hint
    runtime.close()


@needs_qnn
def test_more_widths_than_are_kept_loaded(fp16: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexgraft.host.htp.runtime._LOADED", 1)
    session = HtpSession(fp16)
    try:
        first = session.forward([1], [0], causal(0, 1)).logits(0)
        for count in (8, 1, 8, 1):
            rows = session.forward([1] * count, range(count), causal(0, count))
        np.testing.assert_array_equal(rows.logits(0), first)
    finally:
        session.close()


@needs_qnn
def test_a_binary_of_another_release_is_refused(fp16: Bundle) -> None:
    model = msgspec.json.decode(msgspec.json.encode(fp16.target), type=type(fp16.target))
    for graph in model.graphs:
        if graph.htp is not None:
            graph.htp.qairt = "v2.31.0.250101"
    old = Bundle(fp16.path, msgspec.structs.replace(fp16.manifest, target=model), fp16.digest)
    with pytest.raises(
        BundleError, match=r"was built by QAIRT 2\.31\.0, onnxruntime-qnn here is of QAIRT 2\."
    ) as got:
        HtpSession(old)
    assert got.value.hint is not None
    assert "export again" in got.value.hint


@needs_qnn
def test_what_the_bundle_does_not_have_is_refused(fp16: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no graph of 32 rows for the emulator"):
        HtpSession(fp16, widths=[32])
    with pytest.raises(UsageError, match="has no target graphs for SM8750 at any precision") as caught:
        choose_chains(fp16, "target", "SM8750")
    assert caught.value.hint == "it has: SM8650 fp16"
    plain = open_bundle(write_pair(tmp_path, noise=None))
    with pytest.raises(BundleError, match="has no target graphs for the HTP emulator"):
        HtpSession(plain)


def test_without_the_provider_the_emulator_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(write_pair(tmp_path, noise=None))
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="--backend htp-sim needs onnxruntime-qnn, which") as caught:
        open_session(bundle, "target", "htp-sim")
    assert caught.value.hint
    open_session(bundle, "target", "cpu").forward([1], [0], causal(0, 1))
