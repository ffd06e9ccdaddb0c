"""What rounds cost by a profile: the sums that predict tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hexgraft.host.drafters.ledger import FREE, Toll
from hexgraft.host.lab.comparison import Transcript
from hexgraft.host.measure.profile import LatencyProfile, ProfileError
from hexgraft.host.measure.table import LatencyTable
from hexgraft.host.measure.trial import Part, Trial


@dataclass(frozen=True, slots=True)
class Costs:
    """`host` seconds a round beside its passes, `row` what every token of a round after the first takes: its
    row is fetched, and stored; and what trees add to that."""

    target: LatencyTable
    draft: LatencyTable | None
    host: float = 0.0
    row: float = 0.0
    toll: Toll = FREE

    @classmethod
    def of(cls, profile: LatencyProfile, toll: Toll = FREE) -> Costs:
        return cls(
            LatencyTable(profile.target),
            LatencyTable(profile.draft) if profile.draft is not None else None,
            profile.host_round.median if profile.host_round is not None else 0.0,
            (profile.row.median if profile.row is not None else 0.0) + profile.target.stored_row,
            toll,
        )

    def plain(self, fill: int) -> float:
        """Seconds of a plain round, which emits one token."""
        return self.target.seconds(1, fill) + self.host

    def verify(self, rows: int, fill: int) -> float:
        """Seconds of a round's target pass and what goes with it."""
        return self.target.seconds(rows, fill) + self.host

    def pass_of_draft(self, rows: int, fill: int) -> float:
        """Seconds of a draft pass; raises ProfileError where the profile knows none."""
        if self.draft is None:
            raise ProfileError(
                "the profile has no times of a draft model", "choose among the drafters without one: lookup"
            )
        return self.draft.seconds(rows, fill)

    def catch_up(self, rows: int, fill: int) -> float:
        """Seconds of the draft passes over `rows` tokens of the text, in the widest graph."""
        if self.draft is None:
            return 0.0
        widest = self.draft.widths[-1]
        whole, rest = divmod(rows, widest)
        total = whole * self.pass_of_draft(widest, fill)
        return total + (self.pass_of_draft(rest, fill) if rest else 0.0)

    def seconds(self, part: Part) -> float:
        """What the rounds of a trial on one transcript take."""
        total = self.target.total(part.target) + part.rounds * self.host + part.host
        total += (part.tokens - part.rounds) * self.row
        for (rows, fill), count in part.draft.items():
            total += count * self.pass_of_draft(rows, fill)
        return total

    def plain_seconds(self, transcript: Transcript) -> float:
        """What plain decoding of a transcript takes."""
        start = len(transcript.prompt) - 1
        return sum(self.plain(start + step) for step in range(len(transcript.answer)))

    def speed(self, trial: Trial, only: Sequence[int] | None = None) -> float:
        """Tokens a second of a trial, over some of its parts or all."""
        parts = trial.parts if only is None else [trial.parts[place] for place in only]
        return sum(part.tokens for part in parts) / sum(self.seconds(part) for part in parts)

    def plain_speed(self, transcripts: Sequence[Transcript]) -> float:
        """Tokens a second of plain decoding."""
        tokens = sum(len(transcript.answer) for transcript in transcripts)
        return tokens / sum(self.plain_seconds(transcript) for transcript in transcripts)
