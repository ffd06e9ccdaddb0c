"""The decode loop on the tiny pair: trees change nothing, at every temperature, width and corner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pair import make_pair

from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle
from hexgraft.host.cache import STEP
from hexgraft.host.cpu_session import CpuRows, CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.logits import NotFinite
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session, causal
from hexgraft.models.errors import DecodeError, UsageError

CONTEXT = 256
PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def targets(bundle: Bundle) -> Callable[[int], CpuSession]:
    """Sessions restricted to one width, sharing weights."""
    free = CpuSession(bundle)
    made: dict[int, CpuSession] = {}

    def at(width: int) -> CpuSession:
        if width not in made:
            made[width] = CpuSession(bundle, widths=[width], whole=True, share=free)
        return made[width]

    return at


@pytest.fixture(scope="module")
def drafters(bundle: Bundle) -> Callable[[str, Sampling], Drafter]:
    draft = CpuSession(bundle, "draft")

    def make(name: str, sampling: Sampling) -> Drafter:
        return make_drafter(name, bundle, lambda: draft)

    return make


def decode(
    session: Session, drafter: Drafter, prompt: list[int], options: DecodeOptions
) -> tuple[list[int], Decoder]:
    decoder = Decoder(session, drafter, options)
    decoder.begin(prompt)
    emitted = [token for current in decoder.rounds() for token in current.tokens]
    assert decoder.tokens == prompt + emitted
    return emitted, decoder


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("name", ["lookup", "chain", "best-first", "levels"])
def test_trees_emit_what_plain_decoding_emits(
    targets: Callable[[int], CpuSession],
    drafters: Callable[[str, Sampling], Drafter],
    name: str,
    width: int,
    temperature: float,
) -> None:
    sampling = Sampling(temperature=temperature, seed=11)
    session = targets(width)
    plain, _ = decode(session, NoDraft(), PROMPT, DecodeOptions(200, 1, sampling=sampling))
    trees, decoder = decode(
        session, drafters(name, sampling), PROMPT, DecodeOptions(200, width, sampling=sampling)
    )
    assert len(plain) == 200
    assert trees == plain
    assert decoder.stats.tokens == 200
    assert decoder.stats.rounds < 200


@pytest.mark.parametrize("name", ["lookup", "chain", "best-first", "levels"])
@pytest.mark.parametrize("length", [CONTEXT - 17, CONTEXT - 16, CONTEXT - 1, CONTEXT])
def test_the_context_end_ends_the_text(
    targets: Callable[[int], CpuSession], drafters: Callable[[str, Sampling], Drafter], length: int, name: str
) -> None:
    """A prompt that nearly fills the context: the last token is the one after the last slot, in both
    modes."""
    prompt = np.random.default_rng(2).integers(3, 320, length).tolist()
    session = targets(16)
    plain, a = decode(session, NoDraft(), prompt, DecodeOptions(500, 1))
    trees, b = decode(session, drafters(name, Sampling()), prompt, DecodeOptions(500, 16))
    assert trees == plain
    assert len(plain) == CONTEXT + 1 - length
    assert a.committed == b.committed == CONTEXT


def test_a_prompt_beyond_the_context_is_refused(targets: Callable[[int], CpuSession]) -> None:
    decoder = Decoder(targets(8), NoDraft(), DecodeOptions(5, 1))
    with pytest.raises(DecodeError, match="the prompt has 257 tokens, the context holds 256"):
        decoder.begin([7] * 257)
    with pytest.raises(DecodeError, match="prompt is empty"):
        decoder.begin([])


def test_a_tree_wider_than_any_graph_is_refused(targets: Callable[[int], CpuSession]) -> None:
    with pytest.raises(UsageError, match="--tree-size 9 is wider than the widest graph, 8"):
        Decoder(targets(8), NoDraft(), DecodeOptions(5, 9))


@pytest.mark.parametrize("name", ["chain", "best-first", "levels"])
def test_the_cache_after_every_round_is_that_of_sequential_decoding(
    bundle: Bundle, drafters: Callable[[str, Sampling], Drafter], name: str
) -> None:
    session, reference = CpuSession(bundle), CpuSession(bundle)
    decoder = Decoder(session, drafters(name, Sampling()), DecodeOptions(60, 16))
    decoder.begin(PROMPT)
    reference.reset()
    done = 0
    for _ in decoder.rounds():
        for place in range(done, decoder.committed):
            reference.forward([decoder.tokens[place]], [place], causal(place, 1))
            reference.store([0], [place])
        done = decoder.committed
        ours, theirs = session.save(done), reference.save(done)
        np.testing.assert_allclose(ours.keys, theirs.keys, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(ours.values, theirs.values, atol=1e-5, rtol=1e-5)


def test_a_stop_token_inside_the_path_ends_everything_there(
    bundle: Bundle, targets: Callable[[int], CpuSession], drafters: Callable[[str, Sampling], Drafter]
) -> None:
    session = targets(16)
    free, _ = decode(session, NoDraft(), PROMPT, DecodeOptions(120, 1))
    for place in (3, 20, 50):
        stop = free[place]
        expected = free[: free.index(stop) + 1]
        options = DecodeOptions(120, 16, stops=frozenset({stop}), logprobs=1, margins=True)
        decoder = Decoder(session, drafters("levels", Sampling()), options)
        decoder.begin(PROMPT)
        rounds = list(decoder.rounds())
        assert [t for r in rounds for t in r.tokens] == expected
        assert rounds[-1].finish == "stop"
        assert [entry.token for r in rounds for entry in r.logprobs] == expected
        assert sum(len(r.margins) for r in rounds) == len(expected) == decoder.stats.tokens
        assert decoder.committed == len(PROMPT) + len(expected) - 1


def test_a_drafted_stop_that_the_target_rejects_ends_nothing(
    targets: Callable[[int], CpuSession], drafters: Callable[[str, Sampling], Drafter]
) -> None:
    """Every token the target never emits is a stop: drafts propose them, and the text goes on."""
    session = targets(16)
    free, _ = decode(session, NoDraft(), PROMPT, DecodeOptions(100, 1))
    stops = frozenset(range(320)) - set(free)
    proposed = 0
    decoder = Decoder(session, drafters("levels", Sampling()), DecodeOptions(100, 16, stops=stops))
    decoder.begin(PROMPT)
    emitted: list[int] = []
    for current in decoder.rounds():
        emitted += current.tokens
        proposed += sum(int(token) in stops for token in current.tree.tokens[1:])
        for node in range(1, len(current.tree)):
            assert int(current.tree.tokens[node]) not in stops or not current.tree.children(node)
    assert emitted == free
    assert proposed > 0


def test_max_tokens_in_mid_path(
    targets: Callable[[int], CpuSession], drafters: Callable[[str, Sampling], Drafter]
) -> None:
    session = targets(16)
    free, _ = decode(session, NoDraft(), PROMPT, DecodeOptions(40, 1))
    for most in (1, 2, 3, 5, 7):
        emitted, decoder = decode(session, drafters("levels", Sampling()), PROMPT, DecodeOptions(most, 16))
        assert emitted == free[:most]
        assert decoder.stats.tokens == most


def test_logprobs_are_those_of_the_raw_logits(targets: Callable[[int], CpuSession], bundle: Bundle) -> None:
    session = targets(16)
    options = DecodeOptions(20, 16, logprobs=3, sampling=Sampling(temperature=0.7, repetition=1.3, seed=3))
    decoder = Decoder(session, make_drafter("lookup", bundle, lambda: session), options)
    decoder.begin(PROMPT)
    found = [entry for current in decoder.rounds() for entry in current.logprobs]
    text = decoder.tokens
    reference = CpuSession(bundle, widths=[32], whole=True)
    rows = reference.forward(text[:-1], range(len(text) - 1), causal(0, len(text) - 1))
    for place, entry in enumerate(found):
        logits = rows.logits(len(PROMPT) - 1 + place).astype(np.float64)
        logs = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert entry.token == text[len(PROMPT) + place]
        assert entry.logprob == pytest.approx(logs[entry.token], abs=1e-3)
        assert [token for token, _ in entry.top] == np.argsort(-logits, kind="stable")[:3].tolist()


def test_the_next_turn_prefills_only_what_is_new(
    bundle: Bundle, drafters: Callable[[str, Sampling], Drafter]
) -> None:
    session = CpuSession(bundle)
    decoder = Decoder(session, drafters("levels", Sampling()), DecodeOptions(30, 16))
    decoder.begin(PROMPT)
    for _ in decoder.rounds():
        pass
    longer = [*decoder.tokens, 8, 9, 10]
    done = []
    decoder.begin(longer, done.append, reuse=True)
    reused = [token for current in decoder.rounds() for token in current.tokens]
    assert decoder.stats.reused_tokens == len(longer) - 4
    assert sum(done) == 3
    fresh, _ = decode(CpuSession(bundle), NoDraft(), longer, DecodeOptions(30, 1))
    assert reused == fresh
    other = [*PROMPT[:4], 99, 98]
    decoder.begin(other, reuse=True)
    assert decoder.stats.reused_tokens == 4
    again = [token for current in decoder.rounds() for token in current.tokens]
    assert again == decode(CpuSession(bundle), NoDraft(), other, DecodeOptions(30, 1))[0]


@pytest.mark.parametrize("name", ["none", "lookup", "levels"])
def test_a_text_the_cache_holds_whole_is_gone_on_with(
    bundle: Bundle, drafters: Callable[[str, Sampling], Drafter], name: str
) -> None:
    """The root is computed again: nothing else has the logits of what follows it."""
    drafter = NoDraft() if name == "none" else drafters(name, Sampling())
    decoder = Decoder(CpuSession(bundle), drafter, DecodeOptions(20, 1 if name == "none" else 16))
    decoder.begin(PROMPT)
    first = [token for current in decoder.rounds() for token in current.tokens]
    assert decoder.committed > len(PROMPT)
    decoder.begin(PROMPT, reuse=True)
    assert decoder.stats.reused_tokens == len(PROMPT) - 1
    assert [token for current in decoder.rounds() for token in current.tokens] == first


def test_caches_grow_in_the_middle_of_a_text(tmp_path: Path) -> None:
    """Both of them, while trees stand behind the text; then a second text begins small again."""
    bundle = make_pair(tmp_path, options=ExportOptions((1, 8, 16), 512))
    prompt = np.random.default_rng(8).integers(3, 320, STEP - 12).tolist()
    options = DecodeOptions(40, 16)
    drafter = make_drafter("levels", bundle, lambda: CpuSession(bundle, "draft"))
    decoder = Decoder(CpuSession(bundle), drafter, options)
    for _ in range(2):
        decoder.begin(prompt)
        grown = [token for current in decoder.rounds() for token in current.tokens]
        assert decoder.committed > STEP
        assert decoder.stats.tokens_per_round > 1.5
        whole, _ = decode(CpuSession(bundle, whole=True), NoDraft(), prompt, DecodeOptions(40, 1))
        assert grown == whole


def test_a_tree_is_no_deeper_than_the_tokens_left(
    bundle: Bundle, drafters: Callable[[str, Sampling], Drafter]
) -> None:
    decoder = Decoder(CpuSession(bundle), drafters("levels", Sampling()), DecodeOptions(12, 16))
    decoder.begin(PROMPT)
    left, depths = 12, []
    for current in decoder.rounds():
        assert current.tree.depth <= left - 1, "what the tokens left cannot take was drafted"
        depths.append(left - 1 - current.tree.depth)
        left -= len(current.tokens)
    assert left == 0
    assert 0 in depths, "the limit was never reached"


def test_logits_that_are_not_finite_degrade_a_round_and_say_so(
    bundle: Bundle, drafters: Callable[[str, Sampling], Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in every tree row but the root: the text is still the plain one, and the rounds are marked."""
    session = CpuSession(bundle)
    plain, _ = decode(session, NoDraft(), PROMPT, DecodeOptions(30, 1))
    topk = CpuRows.topk

    def broken(self: CpuRows, k: int, rows: list[int] | None = None, *, log_sum: bool = True) -> object:
        if self._session is session and rows and rows[0] > 0:
            raise NotFinite
        return topk(self, k, rows, log_sum=log_sum)

    monkeypatch.setattr(CpuRows, "topk", broken)
    emitted, decoder = decode(session, drafters("levels", Sampling()), PROMPT, DecodeOptions(30, 16))
    assert emitted == plain
    assert 0 < decoder.stats.degraded <= decoder.stats.rounds


def test_logits_that_are_never_finite_end_the_run_in_words(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise NotFinite

    session = CpuSession(bundle)
    decoder = Decoder(session, NoDraft(), DecodeOptions(30, 1))
    decoder.begin(PROMPT)
    monkeypatch.setattr(CpuRows, "topk", broken)
    with pytest.raises(DecodeError, match="not finite"):
        decoder.step()
