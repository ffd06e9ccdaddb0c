"""Drafters by name: each decodes losslessly, and each gets what sampling and verifier ask of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import DRAFTERS, make_drafter
from hexgraft.host.drafters.shape import AcceptanceTable
from hexgraft.host.sampling import Sampling
from hexgraft.host.verify import VERIFIERS, make_verifier
from hexgraft.models.errors import BundleError, UsageError

PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]
WARM = Sampling(temperature=0.9, seed=3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


def decode(bundle: Bundle, drafter: str, verifier: str, **options: object) -> tuple[Decoder, list[int]]:
    rule = make_verifier(verifier, WARM.seed)
    made = make_drafter(
        drafter,
        bundle,
        lambda: CpuSession(bundle, "draft"),
        sampling=WARM,
        verifier=rule,
        **options,  # type: ignore[arg-type]
    )
    decoder = Decoder(CpuSession(bundle), made, DecodeOptions(60, 8, sampling=WARM), rule)
    decoder.begin(PROMPT)
    list(decoder.rounds())
    return decoder, decoder.tokens[len(PROMPT) :]


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_runs_under_match_and_changes_nothing(bundle: Bundle, name: str) -> None:
    decoder, tokens = decode(bundle, name, "match")
    assert decoder.drafter.name == name
    assert tokens == decode(bundle, "none", "match")[1]
    assert (decoder.stats.rounds < 60) == (name != "none")


@pytest.mark.parametrize("verifier", [v for v in VERIFIERS if v != "match"])
def test_residual_rules_run_with_sampled_and_with_none_and_refuse_the_rest(
    bundle: Bundle, verifier: str
) -> None:
    decoder, tokens = decode(bundle, "sampled", verifier)
    assert len(tokens) == 60
    assert decoder.stats.tokens_per_round > 1.5
    assert decode(bundle, "sampled", verifier)[1] == tokens
    decode(bundle, "none", verifier)
    for name in set(DRAFTERS) - {"sampled", "none"}:
        with pytest.raises(UsageError, match="would be biased"):
            decode(bundle, name, verifier)


def test_table_and_corpus_reach_their_drafters(bundle: Bundle) -> None:
    _, answer = decode(bundle, "none", "match")
    decoder, _ = decode(bundle, "static", "match", table=AcceptanceTable([1.0]))
    decoder.begin(PROMPT)
    assert decoder.step().tree.parents.tolist() == list(range(-1, 7))
    known, tokens = decode(bundle, "lookup", "match", corpus=[[*PROMPT, *answer]])
    assert tokens == answer
    assert known.stats.rounds <= 60 // 8 + 3


def test_a_drafter_runs_again_as_it_ran_before(bundle: Bundle) -> None:
    """What was learned in one text does not leak into the next."""
    for name in ("levels", "lookup", "lookup+levels"):
        decoder, _ = decode(bundle, name, "match")
        first = decoder.stats.as_dict()["acceptance_by_rank"]
        decoder.begin(PROMPT)
        list(decoder.rounds())
        assert decoder.stats.as_dict()["acceptance_by_rank"] == first


def test_unknown_names_and_missing_drafts_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown drafter 'medusa'"):
        make_drafter("medusa", bundle, lambda: CpuSession(bundle, "draft"))
    alone = make_pair(tmp_path, noise=None)
    for name in ("levels", "static", "sampled", "lookup+levels"):
        with pytest.raises(BundleError, match="no draft model"):
            make_drafter(name, alone, lambda: CpuSession(alone, "draft"))
