"""What was chosen for a bundle in a place, kept in the user's state folder for `run` to begin with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from hexgraft.host.atomic_file import try_folder, write_whole
from hexgraft.host.drafters.knobs import KNOBS, parse_knobs
from hexgraft.host.drafters.ledger import FREE, Toll
from hexgraft.host.measure.profile import LatencyProfile, ProfileError
from hexgraft.host.measure.setting import Setting
from hexgraft.host.measure.table import LatencyTable
from hexgraft.host.prefix import Place
from hexgraft.models.errors import HexgraftError, UsageError
from hexgraft.models.user_folders import state_folder

FORMAT = 3
"""Files of another version are not read: tuning again is quick."""


Speed = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Shift = Annotated[float, msgspec.Meta(ge=-50, le=50)]
_AGAIN = "tune again: hexgraft tune BUNDLE"


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The setting that pays most at a temperature, None for plain decoding.

    Speeds are tokens a second over `tokens` tokens: predicted by table and trials, and measured for the
    setting as it is and kept to what pays. `speedup`, by which it was chosen, is the median over all repeats
    of a run kept to what pays against the plain one beside it. `toll` is what that takes the host, `prior`
    what tuning learned of the drafter's probabilities. Acceptance counts [accepted, tried].
    """

    temperature: float
    setting: Setting | None
    tokens: int
    predicted: Speed
    predicted_plain: Speed
    measured: Speed
    measured_plain: Speed
    measured_adaptive: Speed
    speedup: Speed
    toll: Toll = FREE
    prior: tuple[Shift, ...] = ()
    by_depth: list[tuple[int, int]] = []
    by_rank: list[tuple[int, int]] = []


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything chosen for a place, with the table it was chosen by."""

    format: int
    profile: LatencyProfile
    choices: Annotated[list[Choice], msgspec.Meta(min_length=1)]

    def check(self) -> None:
        """Raises UsageError or ProfileError where a run could do nothing with it."""
        for choice in self.choices:
            if choice.setting is not None:
                drafter = choice.setting.drafter
                if drafter not in KNOBS:
                    raise UsageError(f"unknown drafter {drafter!r}")
                parse_knobs(drafter, choice.setting.options)
        for times in filter(None, (self.profile.target, self.profile.draft)):
            if not times.passes:
                raise ProfileError(f"no passes of {times.name}")
            LatencyTable(times)

    def at(self, temperature: float) -> Choice | None:
        """The choice for a temperature: greedy choices for greedy runs, else the nearest one."""
        fitting = [each for each in self.choices if (each.temperature > 0) == (temperature > 0)]
        return min(fitting, key=lambda each: abs(each.temperature - temperature), default=None)

    def with_choice(self, choice: Choice) -> list[Choice]:
        """The choices with a new one in place of an older one of its temperature."""
        return [each for each in self.choices if each.temperature != choice.temperature] + [choice]


class _Versioned(msgspec.Struct, frozen=True):
    format: int


@dataclass(frozen=True, slots=True)
class Site:
    """Where a choice holds: place and bundle, with an NPU's chip, CPU threads, and the machine or phone."""

    place: Place
    threads: int
    identity: str

    @property
    def path(self) -> Path:
        """The file of the choices, whether or not it exists."""
        place = self.place
        words = [place.provider, place.precision, place.widths, self.threads, self.identity]
        words += [place.soc] if place.soc else []
        key = hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()
        return _folder() / f"{self.place.bundle[:16]}-{key[:12]}.json"


def _folder() -> Path:
    return state_folder() / "tuned"


def check_kept() -> None:
    """Make the folder of choices; raises HexgraftError where none can be kept in it."""
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_folder(folder)
    except OSError as error:
        raise HexgraftError(
            f"no choice can be kept in {folder}: {error.strerror or error}",
            "name another folder in HEXGRAFT_STATE, or keep nothing with --no-write",
        ) from error


def read_tuned(site: Site) -> Tuned | None:
    """What was chosen for a site; None if nothing was. Raises HexgraftError where the file cannot be read, is
    damaged, or of another version."""
    path = site.path
    try:
        data = path.read_bytes()
        if msgspec.json.decode(data, type=_Versioned).format != FORMAT:
            raise HexgraftError(f"what was tuned in {path} is of another version of hexgraft", _AGAIN)
        tuned = msgspec.json.decode(data, type=Tuned)
        tuned.check()
        return tuned
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HexgraftError(
            f"cannot read what was tuned in {path}: {error.strerror or error}",
            "name another folder in HEXGRAFT_STATE",
        ) from error
    except (UsageError, ProfileError) as error:
        raise HexgraftError(f"what was tuned in {path} is damaged: {error.message}", _AGAIN) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HexgraftError(f"what was tuned in {path} is damaged: {error}", _AGAIN) from error


def write_choice(site: Site, profile: LatencyProfile, choice: Choice) -> Path:
    """Keep a choice with the table it was made by. Choices for other temperatures stay."""
    try:
        before = read_tuned(site)
    except HexgraftError:  # nothing that a run could use is lost
        before = None
    choices = before.with_choice(choice) if before is not None else [choice]
    path = site.path
    path.parent.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.encode(Tuned(FORMAT, profile, choices))
    write_whole(path, msgspec.json.format(data, indent=1) + b"\n", replace=True)
    return path
