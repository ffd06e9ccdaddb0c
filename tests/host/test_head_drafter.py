"""Draft heads in the decode loop: every tree, every verifier, caches that follow the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitted_head import write_fitted_head
from heads import write_head
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.features import Pending
from hexgraft.host.drafters.head import HeadModel
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.sampling import Sampling
from hexgraft.host.tree import TokenTree
from hexgraft.host.verify import make_verifier
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import DecodeError, UsageError
from hexgraft.models.head_checkpoint import open_draft

SHAPES = ("chain", "levels", "best-first", "static", "lookup+levels")
PROMPT = np.random.default_rng(2).integers(3, 320, 60).tolist()
OPTIONS = ExportOptions((1, 8, 16, 32), 256)


def make(folder: Path, kind: str) -> Bundle:
    target = write_tiny_hf(folder / "target", layers=4)
    if kind == "fitted":
        head = write_fitted_head(folder / "head", target, folder / "work")
    elif kind == "reduced":
        head = write_head(folder / "head", target, rows=90, own_head=False)
    else:
        head = write_head(folder / "head", target, kind)
    checkpoint = open_checkpoint(target)
    export_bundle(
        checkpoint,
        folder / "bundle",
        draft=open_draft(head, checkpoint),
        options=OPTIONS,
        report=lambda step: None,
    )
    return open_bundle(folder / "bundle")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    kinds = ("eagle3", "reduced", "fitted")
    return {kind: make(tmp_path_factory.mktemp(kind), kind) for kind in kinds}


def decoder(
    bundle: Bundle, name: str, sampling: Sampling | None = None, verifier: str = "match", **more: Any
) -> Decoder:
    sampling = sampling or Sampling()
    widths = more.pop("widths", None)
    judge = make_verifier(verifier, sampling.seed)

    def open_draft_session() -> CpuSession:
        return CpuSession(bundle, "draft", widths=widths)

    drafter = make_drafter(name, bundle, open_draft_session, sampling=sampling, verifier=judge)
    options = DecodeOptions(**({"max_tokens": 40, "tree_size": 12} | more), sampling=sampling)
    return Decoder(CpuSession(bundle, widths=widths), drafter, options, judge)


def text(one: Decoder, prompt: list[int] = PROMPT, **arguments: Any) -> list[int]:
    one.begin(prompt, **arguments)
    return [token for current in one.rounds() for token in current.tokens]


@pytest.mark.parametrize("widths", [None, (1, 8, 16)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["reduced", "fitted"])
def test_every_tree_decodes_what_plain_decoding_does(
    bundles: dict[str, Bundle], kind: str, shape: str, widths: tuple[int, ...] | None
) -> None:
    bundle = bundles[kind]
    tried = decoder(bundle, shape, widths=widths)
    assert text(tried) == text(decoder(bundle, "none", tree_size=1, widths=widths))
    assert tried.stats.draft_passes > 0
    if kind == "fitted" and shape != "lookup+levels":
        assert tried.stats.rounds < 30  # of 40 tokens: paths are accepted, and their features read


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["reduced", "fitted"])
def test_match_is_plain_sampling_token_for_token(bundles: dict[str, Bundle], kind: str, shape: str) -> None:
    sampling = Sampling(temperature=0.8, top_k=40, repetition=1.1, presence=0.2, seed=5)
    plain = text(decoder(bundles[kind], "none", sampling, tree_size=1))
    assert text(decoder(bundles[kind], shape, sampling)) == plain


def test_following_the_noise_finds_more(bundles: dict[str, Bundle]) -> None:
    """Positions of the noise are those of the text, not of the head's rows, which are one behind."""
    sampling = Sampling(temperature=1.0, seed=3)
    follows = decoder(bundles["fitted"], "chain", sampling, max_tokens=80)
    text(follows)
    blind = decoder(bundles["fitted"], "chain", sampling, max_tokens=80)
    blind.drafter._model._follow = None  # type: ignore[attr-defined]
    text(blind)
    assert follows.stats.rounds < blind.stats.rounds


@pytest.mark.parametrize("rule", ["specinfer", "sequoia"])
@pytest.mark.parametrize("kind", ["reduced", "fitted"])
def test_sampled_verifiers_keep_the_target_s_distribution(
    bundles: dict[str, Bundle], kind: str, rule: str
) -> None:
    """The first token after a prompt over 400 seeds, against the distribution plain decoding draws from: a
    head of fewer tokens must not keep the others from coming."""
    bundle, prompt, seeds = bundles[kind], PROMPT[:6], 400
    target = CpuSession(bundle)
    plain = Decoder(target, options=DecodeOptions(tree_size=1, max_tokens=1))
    plain.begin(prompt)
    plain.step()
    sampling = Sampling(temperature=1.0, top_k=6)
    from hexgraft.host.sampling import History, distribution
    from hexgraft.host.session import causal

    rows = target.forward([prompt[-1]], [len(prompt) - 1], causal(len(prompt) - 1, 1))
    expected = distribution(rows.logits(0), sampling, History(prompt))
    shares = dict(zip(expected.ids.tolist(), expected.probabilities().tolist(), strict=True))
    draft = CpuSession(bundle, "draft")
    counts: dict[int, int] = {}
    for seed in range(seeds):
        keyed = Sampling(temperature=1.0, top_k=6, seed=seed)
        judge = make_verifier(rule, seed)
        drafter = make_drafter("sampled", bundle, lambda: draft, sampling=keyed, verifier=judge)
        one = Decoder(target, drafter, DecodeOptions(max_tokens=3, tree_size=4, sampling=keyed), judge)
        one.begin(prompt)
        token = one.step().tokens[0]
        counts[token] = counts.get(token, 0) + 1
    assert set(counts) <= set(shares)
    for token, share in shares.items():
        spread = (share * (1 - share) / seeds) ** 0.5
        assert abs(counts.get(token, 0) / seeds - share) < 5 * spread + 1e-9


def trees(one: Decoder, count: int) -> list[TokenTree]:
    return [one.step().tree for _ in range(count)]


def same(a: TokenTree, b: TokenTree) -> bool:
    return a.tokens.tolist() == b.tokens.tolist() and a.parents.tolist() == b.parents.tolist()


@pytest.mark.parametrize("shape", ["chain", "static", "best-first"])
@pytest.mark.parametrize("kind", ["fitted", "reduced"])
def test_after_any_round_the_head_drafts_as_if_it_had_read_the_text_afresh(
    bundles: dict[str, Bundle], kind: str, shape: str
) -> None:
    going = decoder(bundles[kind], shape)
    going.begin(PROMPT)
    fresh = decoder(bundles[kind], shape)
    for _ in range(8):
        known = list(going.tokens)
        fresh.begin(known)
        assert same(going.step().tree, fresh.step().tree)


def test_a_conversation_goes_on_where_both_caches_end(bundles: dict[str, Bundle]) -> None:
    """The head lacks features of what the target need not read again: those are kept, or read again."""
    bundle = bundles["fitted"]
    talk, longer = decoder(bundle, "static"), [*PROMPT, *range(40, 60)]
    first = text(talk)
    for prompt in ([*PROMPT, *first, 5, 6, 7], longer, PROMPT[:20], [*PROMPT[:20], 9], PROMPT[:20], [4]):
        alone = decoder(bundle, "static")
        alone.begin(prompt)
        talk.begin(prompt, reuse=True)
        for ours, theirs in zip(trees(talk, 4), trees(alone, 4), strict=True):
            assert same(ours, theirs)
        assert talk.tokens == alone.tokens
    talk.begin([*talk.tokens, 3], reuse=True)
    assert talk.stats.reused_tokens >= len(talk.tokens) - 3


@pytest.mark.parametrize("held", [0, 30])
def test_a_run_goes_on_after_its_sessions_are_lost(bundles: dict[str, Bundle], held: int) -> None:
    """What the new target still holds is of no use to a head that has lost its features."""
    whole = text(decoder(bundles["fitted"], "levels"))
    one = decoder(bundles["fitted"], "levels")
    one.begin(PROMPT)
    first = [token for _ in range(3) for token in one.step().tokens]
    fresh = decoder(bundles["fitted"], "levels")
    if held:
        fresh.session.restore(one.session.save(held))
    one.resume(fresh.session, fresh.drafter, held=held)
    assert [*first, *(token for current in one.rounds() for token in current.tokens)] == whole


def test_features_of_a_long_prompt_are_read_as_they_come(bundles: dict[str, Bundle]) -> None:
    bundle = bundles["eagle3"]
    model = HeadModel(CpuSession(bundle, "draft", widths=[1, 8]), bundle)
    one = Decoder(CpuSession(bundle, widths=[1, 8]), Levels(model), DecodeOptions(tree_size=8))
    most = 0

    def watch(count: int) -> None:
        nonlocal most
        most = max(most, model._pending.end - model._pending.start)

    one.begin(np.random.default_rng(1).integers(0, 320, 200).tolist(), watch)
    assert most <= 8
    assert model.committed >= 200 - 1 - 8
    assert model.passes == 0
    one.step()
    assert model.committed == 199


def test_a_prompt_of_one_token_drafts_from_the_second_round_on(bundles: dict[str, Bundle]) -> None:
    for shape in (*SHAPES, "sampled"):
        one = decoder(bundles["eagle3"], shape)
        assert text(one, [7]) == text(decoder(bundles["eagle3"], "none", tree_size=1), [7])
        assert one.stats.draft_passes > 0


def test_the_text_may_reach_the_end_of_the_context(bundles: dict[str, Bundle]) -> None:
    for kind in ("eagle3", "fitted"):
        prompt = np.random.default_rng(6).integers(0, 320, 240).tolist()
        one = decoder(bundles[kind], "levels", max_tokens=100)
        plain = decoder(bundles[kind], "none", tree_size=1, max_tokens=100)
        assert text(one, prompt) == text(plain, prompt)
        assert one.finish == plain.finish == "length"


def test_lookup_alone_leaves_the_head_a_bounded_rest(bundles: dict[str, Bundle]) -> None:
    """Rounds in which the head is spared still tell it what was accepted, and it does not pile up."""
    bundle = bundles["fitted"]
    model = HeadModel(CpuSession(bundle, "draft", widths=[1, 8]), bundle)
    one = Decoder(CpuSession(bundle), Levels(model), DecodeOptions(tree_size=1, max_tokens=100))
    one.begin(PROMPT)
    for _ in one.rounds():
        assert model._pending.end - model._pending.start <= 8
    assert model.passes == 0


def test_a_target_that_gives_no_features_is_refused(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    export_bundle(
        open_checkpoint(write_tiny_hf(tmp_path / "m", layers=4)),
        tmp_path / "b",
        options=OPTIONS,
        report=lambda step: None,
    )
    plain = open_bundle(tmp_path / "b")
    model = HeadModel(CpuSession(bundles["eagle3"], "draft"), bundles["eagle3"])
    with pytest.raises(DecodeError, match="reads 192 numbers of every position, the target gives 0"):
        Decoder(CpuSession(plain), Levels(model))

    class Plain:
        """A session without `feed`."""

    with pytest.raises(UsageError, match="cannot run draft heads"):
        HeadModel(Plain(), bundles["eagle3"])  # type: ignore[arg-type]


def test_pending_features() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    pending = Pending(2)
    pending.add(3, rows[:2])
    pending.add(5, rows[2:4])
    assert (pending.start, pending.end) == (3, 7)
    assert (pending.take(4, 6) == rows[1:3]).all()
    assert (pending.start, pending.end) == (6, 7)
    with pytest.raises(DecodeError, match="features of the positions 5 to 6"):
        pending.take(5, 7)
    pending.add(6, rows[4:])  # read anew
    assert (pending.take(6, 8) == rows[4:]).all()
    pending.add(20, rows)  # a gap: what lay before is of no use
    assert (pending.start, pending.end) == (20, 26)
