"""A link that breaks at any call of a run: nothing emitted is lost, and another session goes on with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_session import FakeModel, FakeSession

from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Floats, Rows, TopK
from hexgraft.models.errors import CONNECTION_LOST, HexgraftError

PROMPT = [3, 14, 15, 9, 26, 5]
TARGET = FakeModel()
DRAFT = TARGET.noisy(0.15)
OPTIONS = DecodeOptions(24, 8, margins=True, logprobs=2, sampling=Sampling(temperature=0.6, seed=3))


class Gone(HexgraftError):
    exit_code = CONNECTION_LOST


class Cable:
    """Holds for so many calls, of whatever kind; then every one fails."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def use(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Gone("the link is gone")


class FarRows:
    def __init__(self, rows: Rows, cable: Cable) -> None:
        self._rows, self._cable = rows, cable
        self.count, self.width, self.seconds = rows.count, rows.width, rows.seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        self._cable.use()
        return self._rows.topk(k, rows, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        self._cable.use()
        return self._rows.logits(row)


class FarSession(FakeSession):
    def __init__(self, model: FakeModel, cable: Cable, role: str = "target") -> None:
        super().__init__(model, role=role)
        self._cable = cable

    def forward(self, *args: Any) -> Any:
        self._cable.use()
        return FarRows(super().forward(*args), self._cable)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self._cable.use()
        super().store(rows, slots)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        self._cable.use()
        super().move(source, target)


def drafter(name: str, cable: Cable) -> Drafter:
    return NoDraft() if name == "none" else Levels(DraftModel(FarSession(DRAFT, cable, "draft")))


def follows(rounds: list[Round], start: int) -> None:
    """The rounds are those of one run, as a trace wants them."""
    committed = start
    for current in rounds:
        assert current.context == committed
        assert len(current.tokens) == len(current.accepted) == len(current.margins) == len(current.logprobs)
        assert [each.token for each in current.logprobs] == list(current.tokens)
        assert [current.tree.tokens[node] for node in current.accepted[1:]] == list(current.tokens[:-1])
        committed += len(current.accepted)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("name", ["none", "levels"])
def test_a_link_lost_at_any_call(name: str, held: bool) -> None:
    whole = Decoder(FakeSession(TARGET), drafter(name, Cable(10**9)), OPTIONS)
    whole.begin(PROMPT)
    expected = [token for current in whole.rounds() for token in current.tokens]
    partial = 0
    for calls in range(10**6):
        cable = Cable(10**9)
        session = FarSession(TARGET, cable)
        decoder = Decoder(session, drafter(name, cable), OPTIONS)
        decoder.begin(PROMPT)
        cable.left = calls
        rounds: list[Round] = []
        try:
            for current in decoder.rounds():
                rounds.append(current)
            break
        except Gone:
            pass
        assert PROMPT + [token for current in rounds for token in current.tokens] == decoder.tokens
        partial += bool(rounds) and rounds[-1].lost is not None
        if decoder.finish is None:
            fresh = FakeSession(TARGET)
            count = decoder.committed if held else 0
            if held:
                fresh.restore(session.save(count))
            decoder.resume(fresh, drafter(name, Cable(10**9)), held=count)
            rounds += decoder.rounds()
        assert [token for current in rounds for token in current.tokens] == expected
        follows(rounds, len(PROMPT) - 1)
        assert decoder.stats.tokens == len(expected)
    assert calls > 50
    assert partial > 0


def lost_twice(name: str, calls: int) -> tuple[Decoder, bool]:
    """A run that lost its link after three rounds, and again after so many calls of reading the text again;
    whether it did."""
    options = DecodeOptions(24, 8, sampling=Sampling(temperature=0.6, seed=3, frequency=0.4))
    cable, second = Cable(10**9), Cable(calls)
    decoder = Decoder(FarSession(TARGET, cable), drafter(name, cable), options)
    decoder.begin(PROMPT)
    for _ in range(3):
        decoder.step()
    cable.left = 0
    with pytest.raises(Gone):
        decoder.step()
    lost = False
    try:
        decoder.resume(FarSession(TARGET, second), drafter(name, second))
        second.left = 10**9
    except Gone:
        lost = True
        decoder.resume(FakeSession(TARGET), drafter(name, Cable(10**9)))
    assert [current.finish for current in decoder.rounds()][-1] == "max-tokens"
    return decoder, lost


@pytest.mark.parametrize("name", ["none", "levels"])
def test_a_link_lost_again_while_the_text_is_read_again(name: str) -> None:
    """Budget, penalties and figures are those of the whole text, as where the link was lost once."""
    once, lost = lost_twice(name, 10**9)
    assert not lost
    calls = 0
    while True:
        twice, lost = lost_twice(name, calls)
        if not lost:
            break
        assert twice.tokens == once.tokens
        assert len(twice.tokens) == len(PROMPT) + 24
        ours, theirs = twice.stats.as_dict(), once.stats.as_dict()
        for volatile in ("seconds", "tokens_per_second"):
            ours.pop(volatile), theirs.pop(volatile)
        assert ours == theirs
        calls += 1
    assert calls > 1
