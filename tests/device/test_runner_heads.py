"""Draft heads in the C++ runner: the same states, logits and tokens as the CPU session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fitted_head import write_fitted_head
from heads import write_head
from htp_build import needs_qnn
from tiny import write_tiny_hf

from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.adb.session import DeviceOptions, open_device_session
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.htp.session import HtpSession
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.runner.session import RunnerSession, open_local_session
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session, States, causal
from hexgraft.models.attention import CHOSEN, FUSED, STACKED
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import DecodeError
from hexgraft.models.head_checkpoint import open_draft

PROMPT = np.random.default_rng(2).integers(3, 320, 40).tolist()


@pytest.fixture(scope="module", params=["reduced", "fitted", "w8a8", "fused"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("heads")
    target = write_tiny_hf(folder / "target", layers=4)
    if request.param == "fitted":
        head = write_fitted_head(folder / "head", target, folder / "work")
    else:
        head = write_head(folder / "head", target, rows=90, own_head=False)
    checkpoint = open_checkpoint(target)
    precision = "w8a8" if request.param == "w8a8" else "fp32"
    attention = {"fitted": STACKED, "fused": FUSED}.get(request.param, CHOSEN)
    options = ExportOptions((1, 8, 16), 128, precision=precision, attention=attention)
    draft = open_draft(head, checkpoint)
    export_bundle(checkpoint, folder / "bundle", draft=draft, options=options, report=lambda step: None)
    return open_bundle(folder / "bundle")


@pytest.fixture(scope="module")
def pair(bundle: Bundle, binary: Path) -> Iterator[tuple[RunnerSession, RunnerSession]]:
    target = open_local_session(bundle, "target", binary=binary, threads=1)
    draft = RunnerSession(target.connection, str(bundle.path), "draft", threads=1)
    yield target, draft
    target.close()


def test_features_and_head_passes_are_the_cpu_s(
    bundle: Bundle, pair: tuple[RunnerSession, RunnerSession]
) -> None:
    target, draft = pair
    ours, theirs = CpuSession(bundle, threads=1), CpuSession(bundle, "draft", threads=1)
    assert (target.spec.features, draft.spec.features, draft.spec.logits) == (
        ours.spec.features,
        theirs.spec.features,
        theirs.spec.logits,
    )
    target.reset()
    draft.reset()
    rows = [session.forward(PROMPT[:6], range(6), causal(0, 6)) for session in (target, ours)]
    assert (rows[0].hiddens([4, 1]) == rows[1].hiddens([4, 1])).all()
    features = rows[0].hiddens()
    assert (features[3] == rows[0].hidden(3)).all()
    head = bundle.model("draft").head
    assert head is not None
    size = head.feature_size
    states = States(features[:, :size], np.zeros((6, 64), np.float32) if size else features)
    found = []
    for session in (draft, theirs):
        session.feed(states)
        given = session.forward(PROMPT[1:7], range(6), causal(0, 6))
        found.append((given.topk(5).ids, given.logits(5), given.hiddens()))
        session.store(range(6), range(6))
    for mine, other in zip(*found, strict=True):
        assert (mine == other).all()
    with pytest.raises(DecodeError, match="`hidden` is missing"):
        draft.forward([1], [6], causal(6, 1))


def rounds(bundle: Bundle, shape: str, target: Session, draft: Session, tokens: int = 24) -> list[list[int]]:
    """The tokens of every round and of its tree."""
    sampling = Sampling(temperature=0.7, seed=2)
    drafter = make_drafter(shape, bundle, lambda: draft, sampling=sampling)
    one = Decoder(target, drafter, DecodeOptions(max_tokens=tokens, tree_size=8, sampling=sampling))
    one.begin(PROMPT)
    return [[*current.tokens, *current.tree.tokens.tolist()] for current in one.rounds()]


@pytest.mark.parametrize("shape", ["chain", "levels", "sampled", "lookup+levels"])
def test_a_round_on_the_runner_is_one_on_the_cpu(
    bundle: Bundle, pair: tuple[RunnerSession, RunnerSession], shape: str
) -> None:
    local = CpuSession(bundle, threads=1), CpuSession(bundle, "draft", threads=1)
    assert rounds(bundle, shape, *pair) == rounds(bundle, shape, *local)


@pytest.mark.usefixtures("built_runner")
def test_a_phone_gets_the_head_and_drafts_with_it(bundle: Bundle, device: LoopbackDevice) -> None:
    local = CpuSession(bundle, threads=1), CpuSession(bundle, "draft", threads=1)
    phone = open_device_session(bundle, "target"), open_device_session(bundle, "draft")
    assert rounds(bundle, "levels", *phone) == rounds(bundle, "levels", *local)


@pytest.fixture(scope="module")
def npu(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A head compiled for the emulator."""
    folder = tmp_path_factory.mktemp("npu")
    checkpoint = open_checkpoint(write_tiny_hf(folder / "target", layers=4))
    head = write_head(folder / "head", folder / "target", rows=90, own_head=False)
    export_htp(
        checkpoint,
        folder / "bundle",
        draft=open_draft(head, checkpoint),
        options=ExportOptions((8,), 64),
        htp=HtpOptions(find_socs(("SM8650",)), make_precision("fp16"), parity_rows=0),
        report=lambda step: None,
        say=lambda words: None,
    )
    return open_bundle(folder / "bundle")


@pytest.fixture(scope="module")
def npu_rounds(npu: Bundle) -> list[list[int]]:
    """What the emulator makes of the prompt in Python."""
    target, draft = HtpSession(npu), HtpSession(npu, "draft")
    found = rounds(npu, "levels", target, draft, tokens=8)
    target.close()
    draft.close()
    return found


@needs_qnn
def test_a_round_on_the_emulator_is_the_same_in_the_runner(
    npu: Bundle, npu_rounds: list[list[int]], binary: Path
) -> None:
    target = open_local_session(npu, "target", binary=binary, provider="htp")
    draft = RunnerSession(target.connection, str(npu.path), "draft", provider="htp")
    assert rounds(npu, "levels", target, draft, tokens=8) == npu_rounds
    target.close()


@needs_qnn
@pytest.mark.usefixtures("built_runner")
def test_a_round_on_the_emulator_is_the_same_on_a_phone(
    npu: Bundle, npu_rounds: list[list[int]], device: LoopbackDevice
) -> None:
    how = DeviceOptions(provider="htp")
    target, draft = (open_device_session(npu, role, how) for role in ("target", "draft"))
    assert rounds(npu, "levels", target, draft, tokens=8) == npu_rounds
