"""The lab's prompts on the tiny pair: their transcripts, and a search over them at a table's pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from shapes import shaped_profile

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions
from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.wrapped import WrappedDrafter
from hexgraft.host.lab.comparison import Transcript, transcribe
from hexgraft.host.lab.prompts import LAB_PROMPTS, LabPrompt
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.metered import Metered
from hexgraft.host.measure.profile import LatencyProfile
from hexgraft.host.measure.setting import maker
from hexgraft.host.measure.shaped import ShapedSession, VirtualClock
from hexgraft.host.measure.table import LatencyTable
from hexgraft.host.measure.trial import Bench
from hexgraft.host.measure.tune import Search
from hexgraft.host.measure.wrapped import Wrapped, WrappedRows
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Rows, Session, TopK, Visibility
from hexgraft.host.tree import TokenTree

TOKENS = 64


class PaidRows(Wrapped):
    """`session`, each row of which takes `seconds` to fetch."""

    def __init__(self, session: Session, clock: VirtualClock, seconds: float) -> None:
        super().__init__(session)
        self._pay = partial(clock.pay, seconds)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        return _Paid(self.session.forward(tokens, positions, visible), self._pay)


class _Paid(WrappedRows):
    def __init__(self, rows: Rows, pay: Callable[[], None]) -> None:
        super().__init__(rows)
        self._pay = pay

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        self._pay()
        return super().topk(k, rows, log_sum=log_sum)


class PaidDrafts(WrappedDrafter):
    """Every tree takes `seconds` to draft."""

    def __init__(self, drafter: Drafter, clock: VirtualClock, seconds: float) -> None:
        super().__init__(drafter)
        self._pay = partial(clock.pay, seconds)

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        self._drafter.begin(tokens, keep)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self._pay()
        return self._drafter.draft(tokens, limits)

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._drafter.accept(tree, path)


class Pace:
    """A bundle of tests at a profile's pace, on a clock of its own."""

    def __init__(self, bundle: Bundle, profile: LatencyProfile, sampling: Sampling | None = None) -> None:
        assert profile.draft is not None
        self.clock = VirtualClock()
        self.options = DecodeOptions(max_tokens=TOKENS, tree_size=1, sampling=sampling or Sampling())
        self.target: Session = ShapedSession(CpuSession(bundle), LatencyTable(profile.target), self.clock.pay)
        slow = ShapedSession(CpuSession(bundle, "draft"), LatencyTable(profile.draft), self.clock.pay)
        self.draft = Metered(slow, self.clock, keep=True)
        self.make = maker(bundle, self.options.sampling)
        self.costs = Costs.of(profile)

    def transcripts(self, prompts: Sequence[LabPrompt] = LAB_PROMPTS) -> list[Transcript]:
        return list(transcribe(self.target, prompts, lambda text: list(text.encode())[:90], self.options))

    def search(self, transcripts: Sequence[Transcript]) -> Search:
        bench = Bench(self.target.spec, transcripts, self.options, self.draft, self.clock)
        return Search(bench, self.costs, self.make, lambda: self.draft)


def pace(bundle: Bundle, shape: str, *, draft: float = 0.1, sampling: Sampling | None = None) -> Pace:
    return Pace(bundle, shaped_profile(shape, draft=draft), sampling)
