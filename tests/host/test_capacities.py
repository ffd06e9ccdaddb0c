"""Graphs of fixed capacities: the cache grows from one to the next, and nothing else changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from htp_build import calibration_of, needs_qnn, random_text
from pair import make_pair, write_pair
from tiny import write_tiny_hf

from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.htp.session import HtpSession, choose_chains
from hexgraft.host.session import CacheRows, causal, prefill, tree_visibility
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import BundleError, DecodeError, HexgraftError

WIDTHS = (1, 8)
CAPACITIES = (32, 64, 128)
HTP = ("--target", "htp", "--soc", "SM8650")


def export(
    folder: Path, precision: str, capacities: Sequence[int], **changes: Any
) -> tuple[Bundle, list[str]]:
    """A tiny target compiled for each of `capacities`, and what was said about it."""
    context = capacities[-1]
    write_pair(folder, noise=None, options=ExportOptions(WIDTHS, context), context=max(512, context))
    plan = HtpOptions(
        find_socs(("SM8650",)),
        make_precision(precision),
        parity_rows=0,
        calibration=calibration_of(precision, folder),
        capacities=tuple(capacities),
    )
    said: list[str] = []
    export_htp(
        open_checkpoint(folder / "target-checkpoint"),
        folder / "npu",
        draft=None,
        options=ExportOptions(WIDTHS, context),
        htp=dataclasses.replace(plan, **changes),
        report=lambda step: None,
        say=said.append,
    )
    return open_bundle(folder / "npu"), said


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def npu(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Bundle:
    bundle, words = export(tmp_path_factory.mktemp("capacities"), "fp16", CAPACITIES, parity_rows=24)
    said += words
    return bundle


@pytest.fixture
def emulator(npu: Bundle) -> Iterator[HtpSession]:
    session = HtpSession(npu)
    yield session
    session.close()


def decode(session: CpuSession, prompt: Sequence[int], tree_size: int) -> tuple[list[int], list[float]]:
    options = DecodeOptions(max_tokens=60, tree_size=tree_size, margins=True)
    decoder = Decoder(session, Lookup() if tree_size > 1 else None, options)
    decoder.begin(prompt)
    tokens, margins = [], []
    for current in decoder.rounds():
        tokens += current.tokens
        margins += current.margins
    return tokens, margins


# ------------------------------------------------------------------------- CPU


def with_capacities(bundle: Bundle, capacities: list[int]) -> Bundle:
    target = msgspec.structs.replace(bundle.target, capacities=capacities)
    return Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, target=target), bundle.digest)


def test_the_cpu_grows_as_the_device_does(tmp_path: Path) -> None:
    bundle = with_capacities(make_pair(tmp_path, noise=None), [16, 48, 256])
    session = CpuSession(bundle, whole=True)
    assert session.spec.capacity == 256
    sizes, text = [session._cache.capacity], random_text(60)
    for end in prefill(session, text, 0, 60):
        sizes.append(session._cache.capacity)
        assert end <= sizes[-1]
    assert sizes == [16, 48, 256]
    free = CpuSession(bundle)
    for _ in prefill(free, text, 0, 60):
        pass
    np.testing.assert_array_equal(session.save(60).keys, free.save(60).keys)
    session.reset()
    assert session._cache.capacity == 16


def test_capacities_of_a_session_bound_it(tmp_path: Path) -> None:
    session = CpuSession(make_pair(tmp_path, noise=None), capacities=[16, 48])
    assert session.spec.capacity == 48
    session.forward([1], [47], causal(48, 1))
    with pytest.raises(DecodeError, match="beyond the context of 48"):
        session.forward([1], [48], causal(48, 1))
    with pytest.raises(DecodeError, match="slot 48 is beyond the context of 48"):
        session.forward([1], [47], causal(49, 1))


@pytest.mark.parametrize("capacities", [[64, 32, 256], [32, 64], [0, 256], [256, 256]])
def test_odd_capacities_are_refused(tmp_path: Path, capacities: list[int]) -> None:
    path = write_pair(tmp_path, noise=None)
    manifest = msgspec.json.decode((path / "bundle.json").read_bytes())
    manifest["target"]["capacities"] = capacities
    (path / "bundle.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(BundleError, match="expected ascending numbers up to its context 256"):
        open_bundle(path)


def test_far_positions_are_the_same_through_any_chunks(tmp_path: Path) -> None:
    """An 8k text in the widest passes and in odd ones; positions and mask of the last rows are right if the
    logits there are."""
    options = ExportOptions((1, 128), 8192)
    bundle = make_pair(tmp_path, noise=None, options=options, context=8192, layers=1, hidden=32, heads=2)
    text = random_text(8192)
    wide = CpuSession(bundle)
    for _ in prefill(wide, text, 0, 8191):
        pass
    last = wide.forward(text[-1:], [8191], causal(8191, 1)).logits(0)
    whole = CpuSession(bundle, widths=[100], whole=True)
    for _ in prefill(whole, text, 0, 8191):
        pass
    np.testing.assert_allclose(
        whole.forward(text[-1:], [8191], causal(8191, 1)).logits(0), last, rtol=0, atol=2e-4
    )
    assert wide._cache.capacity == whole._cache.capacity == 8192
    shifted = wide.forward(text[-1:], [4000], causal(8191, 1)).logits(0)
    assert np.abs(shifted - last).max() > 1e-3  # far positions do turn the rows


# ------------------------------------------------------------------------- NPU


@needs_qnn
def test_every_width_has_a_graph_for_each_capacity_in_one_binary(npu: Bundle, said: list[str]) -> None:
    assert npu.target.capacities == list(CAPACITIES)
    assert npu.target.context == 128
    sizes = {(width, capacity) for width in WIDTHS for capacity in CAPACITIES}
    graphs = npu.target.graphs
    device = [graph for graph in graphs if graph.provider == "htp"]
    assert {(graph.width, graph.capacity) for graph in device} == sizes
    assert {graph.htp.binary for graph in device if graph.htp} == {"target/htp/sm8650/fp16/target.bin"}
    assert set(choose_chains(npu, "target")) == sizes
    assert any("2 widths at each of 3 capacities (32, 64, 128 slots), 6 graphs" in words for words in said)
    one = max(npu.file(g.htp.binary).stat().st_size for g in graphs if g.htp and g.provider == "htp-sim")
    assert npu.file("target/htp/sm8650/fp16/target.bin").stat().st_size < 2 * one
    assert {graph.file for graph in graphs if graph.provider == "htp-sim"} == set(npu.manifest.parity)
    npu.verify()


@needs_qnn
@pytest.mark.parametrize("tree_size", [1, 8])
def test_the_text_is_the_cpus_across_capacities(npu: Bundle, emulator: HtpSession, tree_size: int) -> None:
    """20 tokens of prompt and 60 of answer: the cache moves twice on the way, once in each of two passes."""
    prompt = random_text(20, seed=4)
    ours, margins = decode(CpuSession(npu, widths=WIDTHS, whole=True), prompt, 1)
    theirs, _ = decode(emulator, prompt, tree_size)
    assert emulator._cache.capacity == 128
    assert len(theirs) == 60
    for token, other, margin in zip(ours, theirs, margins, strict=True):
        if token != other:
            assert margin < 0.05
            break


@needs_qnn
def test_the_cache_moves_whole_and_only_when_it_must(emulator: HtpSession) -> None:
    text, sizes = random_text(100), []
    for _ in prefill(emulator, text, 0, 32):
        sizes.append(emulator._cache.capacity)
    assert sizes == [32] * 4  # a full cache is no reason to move it
    before = emulator.save(32)
    emulator.store([0], [32])
    assert emulator._cache.capacity == 64
    after = emulator.save(32)
    np.testing.assert_array_equal(after.keys, before.keys)
    np.testing.assert_array_equal(after.values, before.values)
    emulator.forward([1], [99], causal(100, 1))
    assert emulator._cache.capacity == 128
    emulator.restore(before)
    assert emulator._cache.capacity == 128


@needs_qnn
def test_texts_one_after_the_other_are_the_same_and_take_no_more_room(emulator: HtpSession) -> None:
    prompt = random_text(20, seed=4)
    first, _ = decode(emulator, prompt, 8)
    room = emulator._remote._size
    for _ in range(3):
        assert decode(emulator, prompt, 8)[0] == first
    assert emulator._remote._size == room


@needs_qnn
def test_a_session_of_one_capacity_begins_there(npu: Bundle) -> None:
    session = HtpSession(npu, capacities=[64])
    assert (session.spec.capacity, session._cache.capacity) == (64, 64)
    session.forward([1], [0], causal(0, 1))
    session.close()


@needs_qnn
def test_a_graph_that_is_missing_is_told(npu: Bundle) -> None:
    graphs = [g for g in npu.target.graphs if (g.width, g.capacity) != (8, 64)]
    target = msgspec.structs.replace(npu.target, graphs=graphs)
    broken = Bundle(npu.path, msgspec.structs.replace(npu.manifest, target=target), npu.digest)
    with pytest.raises(BundleError, match="no target graph of 8 rows over 64 slots") as caught:
        HtpSession(broken)
    assert caught.value.hint


@needs_qnn
@pytest.mark.parametrize("precision", ["fp16", "w8a16"])
def test_the_far_end_of_a_long_cache_is_right_on_the_npu(precision: str, tmp_path: Path) -> None:
    """8 190 slots of K/V, and a tree at the last positions there are."""
    bundle, _ = export(tmp_path, precision, (512, 8192), host_widths=(8,))
    cpu, npu = CpuSession(bundle, widths=(8,), whole=True), HtpSession(bundle)
    model, rng = bundle.target, np.random.default_rng(3)
    text = random_text(300)
    for _ in prefill(cpu, text, 0, 300):
        pass
    near = cpu.save(300)
    # Real rows at the front and the back, and something in between that both sessions have alike.
    keys = rng.standard_normal((model.layers, model.kv_heads, model.head_dim, 8184)).astype(np.float32) * 0.1
    values = np.ascontiguousarray(keys.transpose(0, 1, 3, 2))
    keys[..., :300], values[:, :, :300] = near.keys, near.values
    ancestors = np.tri(8, dtype=np.bool_)
    ancestors[5, 4] = ancestors[6, 5] = False
    rows = []
    for session in (cpu, npu):
        session.reset()
        session.restore(CacheRows(keys, values))
        places = [8184, 8185, 8186, 8187, 8188, 8188, 8189, 8191]
        result = session.forward(text[:8], places, tree_visibility(8184, ancestors))
        assert session._cache.capacity == 8192
        rows.append(np.stack([result.logits(row) for row in range(8)]))
    npu.close()
    noise, signal = np.square(rows[1] - rows[0]).sum(), np.square(rows[0]).sum()
    assert 10 * np.log10(signal / noise) > (40 if precision == "fp16" else 20)


# ---------------------------------------------------------------- command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--context", "128,64"), "several capacities are for the NPU"),
        (("--context", "many"), "--context 'many' is not a number of slots"),
        (("--context", "0"), "--context '0' is not a number of slots"),
        (("--context", "8,16,32,64", "--widths", "1,2,4,8,16", *HTP), "4 capacities are 20 graphs"),
        (("--context", "64,1024", *HTP), "--context 1024 is more than the 512 positions"),
    ],
)
@needs_qnn
def test_capacities_that_cannot_be_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    checkpoint = write_tiny_hf(tmp_path / "checkpoint")
    result = CliRunner().invoke(cli, ["export", str(checkpoint), "-o", str(tmp_path / "out"), *arguments])
    assert isinstance(result.exception, HexgraftError)
    assert words in result.exception.message
    assert result.exception.hint
    assert not (tmp_path / "out").exists()
