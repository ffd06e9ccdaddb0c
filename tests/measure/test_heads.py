"""Draft heads are measured, tried and kept to what pays like any draft model."""

from __future__ import annotations

from pathlib import Path

import pytest
from heads import write_head
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import NoDraft
from hexgraft.host.lab.comparison import measure, transcribe
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.latency import Plan, measure_model
from hexgraft.host.measure.metered import Metered
from hexgraft.host.measure.profile import FORMAT, LatencyProfile, Machine, Source
from hexgraft.host.measure.setting import Setting, maker, usable_drafters
from hexgraft.host.measure.trial import Bench
from hexgraft.host.measure.tune import Search
from hexgraft.host.sampling import Sampling
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import open_draft

OPTIONS = DecodeOptions(max_tokens=24, tree_size=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder: Path = tmp_path_factory.mktemp("head")
    target = open_checkpoint(write_tiny_hf(folder / "target", layers=4))
    head = open_draft(write_head(folder / "head", folder / "target"), target)
    export_bundle(
        target,
        folder / "bundle",
        draft=head,
        options=ExportOptions((1, 8, 16), 256),
        report=lambda step: None,
    )
    return open_bundle(folder / "bundle")


def test_a_head_is_tuned_like_a_model(bundle: Bundle) -> None:
    target, draft = CpuSession(bundle), CpuSession(bundle, "draft")
    plan = Plan(fills=(16,), repeats=1, warmup=0)
    assert bundle.draft is not None
    profile = LatencyProfile(
        FORMAT,
        Source("measured here", "2026-11-29", "a test"),
        Machine("a machine of tests"),
        "cpu",
        measure_model(target, bundle.target, plan),
        measure_model(draft, bundle.draft, plan),
    )
    transcripts = list(transcribe(target, LAB_PROMPTS[:1], lambda text: list(text.encode())[:40], OPTIONS))
    meter = Metered(draft, keep=True)
    make = maker(bundle, Sampling())
    assert "levels" in usable_drafters(make, lambda: meter)
    search = Search(Bench(target.spec, transcripts, OPTIONS, meter), Costs.of(profile), make, lambda: meter)
    guess = search.guess(Setting("levels", 8))
    assert guess.trial.passes_per_round > 0
    real = Decoder(target, make(Setting("levels", 8), lambda: draft), DecodeOptions(24, 8))
    real.begin(transcripts[0].prompt)
    rounds = list(real.rounds())
    assert len(rounds) == guess.trial.rounds
    assert real.stats.by_rank == guess.trial.by_rank
    kept = Decoder(target, search.adaptive(guess), DecodeOptions(24, 16))
    kept.begin(transcripts[0].prompt)
    assert tuple(token for r in kept.rounds() for token in r.tokens) == transcripts[0].answer


def test_the_lab_tries_heads_against_a_text(bundle: Bundle) -> None:
    target, draft = CpuSession(bundle), CpuSession(bundle, "draft")
    (transcript,) = transcribe(target, LAB_PROMPTS[1:2], lambda text: list(text.encode())[:40], OPTIONS)
    assert transcript.features is not None
    assert transcript.features.shape == (40 + 24 - 1, target.spec.features)
    drafter = maker(bundle, Sampling())(Setting("chain", 4), lambda: draft)
    assert measure(target, transcript, drafter, 4, OPTIONS).draft_passes > 0
    plain = Decoder(target, NoDraft(), OPTIONS)
    plain.begin(transcript.prompt)
    assert tuple(token for r in plain.rounds() for token in r.tokens) == transcript.answer
