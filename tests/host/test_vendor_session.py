"""The vendor's layout on the CPU: the tokens, trees and cache rows of hexgraft's own, whatever the width."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import hexgraft
from htp_build import needs_qnn
from numpy.typing import NDArray
from vendor_export import VendorExport, import_folder, write_vendor_export

from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.foreign.session import VendorSession
from hexgraft.host.measure.trial import with_widths
from hexgraft.host.prefix import Place
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session, Visibility, causal, prefill, tree_visibility
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.host.tree import TokenTree, TreeBuilder
from hexgraft.models.errors import BundleError, DecodeError, UsageError

PROMPT = [40, 51, 7, 260, 33, 12] * 3
TEXT = [int(token) for token in np.random.default_rng(0).integers(8, 300, 40)]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> VendorExport:
    """Three parts, uint8 K/V, 160 columns at 1, 8, 16 and 32 rows."""
    return write_vendor_export(tmp_path_factory.mktemp("vendor"))


@pytest.fixture(scope="module")
def bundle(export: VendorExport) -> Bundle:
    return import_folder(export.folder, export.folder.parent / "bundle")


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> VendorExport:
    """Mask, RoPE tables and logits in uint16 as well; two parts."""
    return write_vendor_export(tmp_path_factory.mktemp("border"), cuts=("layers.0.out",), border=True)


def decode(session: Session, bundle: Bundle, drafter: str, temperature: float = 0.0) -> list[Round]:
    sampling = Sampling(temperature=temperature, seed=7)
    size = 1 if drafter == "none" else 14
    options = DecodeOptions(max_tokens=200, tree_size=size, sampling=sampling, margins=True)
    decoder = Decoder(session, make_drafter(drafter, bundle, lambda: session, sampling=sampling), options)
    decoder.begin(PROMPT)
    return list(decoder.rounds())


def tokens_of(rounds: list[Round]) -> list[int]:
    return [token for current in rounds for token in current.tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_text_and_trees_are_those_of_our_layout(
    export: VendorExport, bundle: Bundle, drafter: str, temperature: float
) -> None:
    """Up to the very last slot, passes of all four widths. Logits differ by rounding alone where a softmax
    sums over other columns; no decision hangs on it."""
    vendor = open_session(bundle, "target", "cpu")
    own = export.reference(widths=[1, 8, 16, 32], capacities=[128])
    theirs, ours = (decode(session, bundle, drafter, temperature) for session in (vendor, own))
    assert tokens_of(theirs) == tokens_of(ours)
    assert [current.accepted for current in theirs] == [current.accepted for current in ours]
    assert theirs[-1].finish == ours[-1].finish == "length"
    assert len(tokens_of(theirs)) == 128 - len(PROMPT) + 1
    if drafter == "lookup":
        assert any(len(current.tree) > 8 for current in theirs)
        assert len(theirs) < len(tokens_of(theirs))  # trees were accepted
    if temperature == 0:
        margins = [margin for current in theirs for margin in current.margins]
        assert min(margins) > 1e-3


@pytest.mark.parametrize("width", [8, 32])
def test_one_width_of_the_same_shape_gives_every_bit(
    export: VendorExport, quantised: VendorExport, tmp_path: Path, width: int
) -> None:
    for number, made in enumerate((export, quantised)):
        bundle = import_folder(made.folder, tmp_path / f"bundle-{number}")
        vendor = open_session(bundle, "target", "cpu", widths=[width])
        own = made.reference(widths=[width], capacities=[made.columns - width])
        assert vendor.spec.capacity == own.spec.capacity == made.columns - width
        for session in (vendor, own):
            for _ in prefill(session, TEXT, 0, len(TEXT) - 1):
                pass
        rows = [session.forward(*tree_pass(small_tree(), len(TEXT) - 1)) for session in (vendor, own)]
        for node in range(len(small_tree())):
            assert (rows[0].logits(node) == rows[1].logits(node)).all()
        assert (rows[0].topk(5).ids == rows[1].topk(5).ids).all()
        saved = [session.save(len(TEXT) - 1) for session in (vendor, own)]
        assert (saved[0].keys == saved[1].keys).all()
        assert (saved[0].values == saved[1].values).all()


def small_tree() -> TokenTree:
    builder = TreeBuilder(TEXT[-1])
    for parent, token in ((0, 9), (0, 30), (1, 77), (2, 101), (3, 12)):
        builder.add(parent, token, 0.5, "test")
    return builder.build()


def tree_pass(tree: TokenTree, context: int) -> tuple[list[int], list[int], Visibility]:
    positions = [context + int(depth) for depth in tree.depths]
    return tree.tokens.tolist(), positions, tree_visibility(context, tree.ancestors())


def test_widths_share_slots(bundle: Bundle) -> None:
    """A cache filled by one width, read by another, moved, saved and restored: the numbers stay the same."""
    session = open_session(bundle, "target", "cpu")
    for _ in prefill(session, TEXT, 0, 33):  # 32 rows, then one
        pass
    saved = session.save(33)
    wide = logits_after(session, 33, 8)
    other = open_session(bundle, "target", "cpu")
    other.restore(saved)
    assert (other.save(33).keys == saved.keys).all()
    assert (other.save(33).values == saved.values).all()
    assert (logits_after(other, 33, 8) == wide).all()
    other.forward(TEXT[33:36], [33, 34, 35], causal(33, 3))
    other.store([0, 2], [40, 41])
    other.move([40, 41], [33, 34])
    moved = other.save(35)
    session.forward(TEXT[33:36], [33, 34, 35], causal(33, 3))
    session.store([0, 2], [33, 34])
    assert (session.save(35).keys == moved.keys).all()
    assert (logits_after(other, 35, 20) == logits_after(session, 35, 20)).all()
    session.reset()
    assert not session.save(3).keys.any()


def logits_after(session: Session, context: int, count: int) -> NDArray[np.float32]:
    tokens = [(7 * i) % 300 for i in range(count)]
    rows = session.forward(tokens, range(context, context + count), causal(context, count))
    return np.stack([rows.logits(row) for row in range(count)])


def test_scratch_slots_are_seen_through_the_mask(export: VendorExport, bundle: Bundle) -> None:
    vendor, own = (
        open_session(bundle, "target", "cpu"),
        export.reference(widths=[1, 8, 16, 32], capacities=[128]),
    )
    seen = np.array([[True, False], [False, True]])
    for session in (vendor, own):
        for _ in prefill(session, TEXT, 0, 20):
            pass
        session.forward([9, 30], [20, 20], causal(20, 2))
        session.store([0, 1], [50, 60])
    visible = Visibility(20, np.eye(2, dtype=np.bool_), np.array([50, 60], np.int32), seen)
    rows = [session.forward([11, 11], [21, 21], visible) for session in (vendor, own)]
    assert (rows[0].logits(0) != rows[0].logits(1)).any()
    for row in range(2):
        np.testing.assert_allclose(rows[0].logits(row), rows[1].logits(row), atol=1e-5, rtol=0)


def test_narrower_widths_leave_more_slots(bundle: Bundle) -> None:
    assert open_session(bundle, "target", "cpu").spec.capacity == bundle.target.context == 128
    session = open_session(bundle, "target", "cpu", widths=[1, 8])
    assert (session.spec.capacity, session.spec.max_width, session.spec.widths) == (152, 8, (1, 8))
    session.forward([5], [151], causal(151, 1))
    session.store([0], [151])
    with pytest.raises(DecodeError, match="slot 152 is beyond the context of 152 slots"):
        session.store([0], [152])
    with pytest.raises(DecodeError, match="beyond the context"):
        session.forward([5], [100], causal(153, 1))
    with pytest.raises(UsageError, match="no graph of 4 rows"):
        open_session(bundle, "target", "cpu", widths=[4])


def test_graphs_that_give_one_rows_logits_prefill(tmp_path: Path) -> None:
    """The widest graph's last row alone: prompts go through it, trees through the others."""
    made = write_vendor_export(tmp_path, widths=(1, 8, 32), last=(32,))
    bundle = import_folder(made.folder, tmp_path / "bundle")
    vendor, own = open_session(bundle, "target", "cpu"), made.reference(widths=[1, 8, 32], capacities=[128])
    for session in (vendor, own):
        for _ in prefill(session, TEXT, 0, 39):
            pass
    np.testing.assert_allclose(vendor.save(39).keys, own.save(39).keys, atol=1e-6)
    assert vendor.forward(TEXT[:8], range(39, 47), causal(39, 8)).width == 8
    ours = own.forward(TEXT[:12], range(39, 51), causal(39, 12))
    theirs = vendor.forward(TEXT[:12], range(39, 51), causal(39, 12))
    assert theirs.width == 32
    np.testing.assert_allclose(theirs.logits(11), ours.logits(11), atol=1e-5, rtol=0)
    assert theirs.topk(3, [11]).ids.tolist() == ours.topk(3, [11]).ids.tolist()
    with pytest.raises(DecodeError, match="gives the logits of its last row alone"):
        theirs.topk(1)
    vendor.store([11], [39])
    own.store([11], [39])
    np.testing.assert_allclose(vendor.save(40).keys, own.save(40).keys, atol=1e-6)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Graphs of 1, 8 and 32 rows, the widest of which gives its last row's logits alone."""
    folder = tmp_path_factory.mktemp("cut")
    made = write_vendor_export(folder, widths=(1, 8, 32), last=(32,))
    return import_folder(made.folder, folder / "bundle")


def test_trees_are_as_wide_as_graphs_that_give_every_rows_logits(cut: Bundle) -> None:
    session = open_session(cut, "target", "cpu")
    spec = session.spec
    assert (spec.max_width, spec.tree_width, spec.tree_widths) == (32, 8, (1, 8))
    with pytest.raises(UsageError) as caught:
        Decoder(session, options=DecodeOptions(tree_size=9))
    assert caught.value.message == (
        "--tree-size 9 is wider than the widest graph with the logits of every row, 8"
    )
    assert caught.value.hint == "use --tree-size 8 or less"
    for widths in ([1, 32], [32]):
        alone = open_session(cut, "target", "cpu", widths=widths)
        assert (alone.spec.tree_width, alone.spec.tree_widths) == (1, (1,))
        assert alone.forward([5], [0], causal(0, 1)).topk(1).ids.shape == (1, 1)
    # As the places of tables would run it, be it one where any width runs.
    assert with_widths(spec, None, 32).tree_width == 8
    assert with_widths(spec, (1, 4, 16, 32), 32).tree_widths == (1, 4, 16)


def test_commands_take_such_graphs_as_they_are(
    cut: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an option about trees: decoding, its trace, measuring and choosing."""
    monkeypatch.setenv("HEXGRAFT_STATE", str(tmp_path / "state"))
    trace = tmp_path / "trace.jsonl"
    text = ("-p", "the quick brown fox and the quick brown dog and the quick", "--raw")
    ran = hexgraft("run", cut.path, *text, "--max-tokens", "90", "--trace", trace, "--json")
    assert ran.exit_code == 0, ran.stderr
    plain = hexgraft("run", cut.path, *text, "--max-tokens", "90", "--plain", "--json")
    assert json.loads(ran.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]
    assert read_trace(trace).header.tree_size == 8
    assert max(len(current.tokens) for current in read_trace(trace).rounds) == 8
    replayed = hexgraft("replay", trace, cut.path, "--json")
    assert json.loads(replayed.stdout)["total"]["max_error"] == 0
    measured = hexgraft("bench", cut.path, "--repeats", "1", "--fills", "16", "--max-tokens", "4", "--json")
    target = json.loads(measured.stdout)["target"]
    assert target["widths"] == [1, 8]
    assert {each["width"] for each in target["passes"]} == {1, 8}
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the sky is blue\n", encoding="utf-8")
    words = ("--prompts", prompts, "--max-tokens", "16", "--drafters", "lookup", "--repeats", "1", "--json")
    tuned = hexgraft("tune", cut.path, *words)
    assert tuned.exit_code == 0, tuned.stderr
    assert max(each["setting"]["tree_size"] for each in json.loads(tuned.stdout)["settings"]) == 8
    assert "tuned: " in hexgraft("run", cut.path, *text, "--max-tokens", "20").stderr


def test_rows_are_gone_after_the_next_pass_and_arguments_are_checked(bundle: Bundle) -> None:
    session = open_session(bundle, "target", "cpu")
    rows = session.forward([5], [0], causal(0, 1))
    session.forward([5], [0], causal(0, 1))
    with pytest.raises(DecodeError, match="these rows are gone"):
        rows.logits(0)
    with pytest.raises(DecodeError, match="outside the vocabulary"):
        session.forward([320], [0], causal(0, 1))
    with pytest.raises(DecodeError, match="position 128 is beyond"):
        session.forward([5], [128], causal(0, 1))
    with pytest.raises(DecodeError, match="a pass of 33 rows"):
        session.forward([5] * 33, range(33), causal(0, 33))
    with pytest.raises(DecodeError, match="1 tokens, 2 positions"):
        session.forward([5], [0, 1], causal(0, 1))
    with pytest.raises(DecodeError, match="no hidden output"):
        session.forward([5], [0], causal(0, 1)).hidden(0)
    with pytest.raises(DecodeError, match="does not belong to this model"):
        session.restore(
            type(session.save(1))(np.zeros((1, 1, 1, 1), np.float32), np.zeros((1, 1, 1, 1), np.float32))
        )


@needs_qnn
def test_other_places_say_what_they_miss(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="no target graphs for htp-sim, only for cpu"):
        open_session(bundle, "target", "htp-sim")


def test_the_processor_runs_what_a_vendor_exported(bundle: Bundle) -> None:
    assert isinstance(open_session(bundle, "target", "cpu"), VendorSession)
    assert Place.of(bundle, "cpu", None).precision == "quantised"
