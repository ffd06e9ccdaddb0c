"""The latency profile: what a pass costs at every width and cache fill on one machine, and where that is
known from. Benchmarks write it; whatever predicts tokens a second reads it."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hexgraft.host.atomic_file import check_place, check_replaced, write_whole
from hexgraft.host.drafters.ledger import Seconds
from hexgraft.models.errors import HexgraftError, mistyped

FORMAT = 1
"""Readers accept exactly this version; there is no compatibility code."""

Kind = Literal["measured here", "measured on a phone", "hosted device", "published"]
"""Where figures come from. Only the first two were measured by us; the last makes predictions only."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Width = Annotated[int, msgspec.Meta(ge=1, le=4096)]

_LIMIT = 16 << 20


class ProfileError(HexgraftError):
    """A profile that cannot be read, or does not say what is asked of it."""


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Repeats of one thing, in seconds: the median, the quartiles, how many. A single published figure has
    all three alike and the count 0."""

    median: Seconds
    low: Seconds
    high: Seconds
    count: Count

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        """The spread of at least one measurement."""
        values = sorted(seconds)
        return cls(_quantile(values, 0.5), _quantile(values, 0.25), _quantile(values, 0.75), len(values))

    @classmethod
    def single(cls, seconds: float) -> Spread:
        """A figure that came without repeats."""
        return cls(seconds, seconds, seconds, 0)


def _quantile(values: list[float], share: float) -> float:
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


class PassTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pass of `width` rows with `fill` slots of the cache in use.

    `graph` is the time inside the graph runtime; `call` what the decode loop waits, the best tokens of the
    rows fetched, where that was measured too. `how` is "interpolated" for a figure computed from its
    neighbours.
    """

    width: Width
    fill: Count
    graph: Spread
    call: Spread | None = None
    how: Literal["measured", "published", "interpolated"] = "measured"

    @property
    def seconds(self) -> float:
        """What a round pays for it, as far as is known."""
        return (self.call or self.graph).median


class CacheTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Storing or moving `rows` cache rows."""

    operation: Literal["store", "move"]
    rows: Width
    time: Spread


class ModelTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One model's passes. `widths` are those its static graphs have, to which passes are padded; None where a
    pass of any width runs as it is."""

    name: str
    passes: list[PassTime]
    widths: list[Width] | None = None
    parameters: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cache: list[CacheTime] = []

    @property
    def stored_row(self) -> float:
        """Seconds that storing one row more takes, from the fewest and the most rows measured."""
        stores = sorted((each.rows, each.time.median) for each in self.cache if each.operation == "store")
        if len(stores) < 2 or stores[-1][0] == stores[0][0]:
            return 0.0
        return max(0.0, (stores[-1][1] - stores[0][1]) / (stores[-1][0] - stores[0][0]))


class Citation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure as it was found, and the address of the page it stands on."""

    figure: str
    address: str


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a profile comes from: its kind, the day (YYYY-MM-DD), the program or page, remarks, and for
    figures of others every one of them with its address."""

    kind: Kind
    taken: str
    by: str
    note: str = ""
    citations: list[Citation] = []


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What computed: `name` is what people call it, `identity` tells two of the same kind apart (a phone's
    serial, a host's name). What is not known is left out."""

    name: str
    identity: str = ""
    chip: str = ""
    system: str = ""
    cores: Count | None = None
    threads: Count | None = None
    memory: Annotated[int, msgspec.Meta(ge=0)] | None = None
    load: float | None = None
    runtime: str = ""


class Conditions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A phone at one moment: temperatures in degrees Celsius by zone, frequencies in kHz by core, battery in
    per cent, whether it charges and whether its screen is on."""

    temperatures: dict[str, float] = {}
    frequencies: dict[str, int] = {}
    battery: int | None = None
    plugged: bool | None = None
    awake: bool | None = None


class Endurance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plain decoding for a while: tokens a second in the first and in the last quarter of `tokens`."""

    tokens: Count
    first: float
    sustained: float


class LatencyProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`bundle` is the digest of the bundle measured, "" for none of ours. `backend` is the place's name, such
    as "cpu" or "device-htp". `host_round` is what a round costs beside its passes, plain decoding; `row` what
    the best token of one more row of the target's pass costs."""

    format: int
    source: Source
    machine: Machine
    backend: str
    target: ModelTimes
    draft: ModelTimes | None = None
    bundle: str = ""
    host_round: Spread | None = None
    row: Spread | None = None
    endurance: Endurance | None = None
    before: Conditions | None = None
    after: Conditions | None = None
    cooling: Seconds | None = None
    """How long it was waited for a warm phone before measuring."""

    @property
    def measured(self) -> bool:
        """Whether these are our own measurements rather than somebody's figures."""
        return self.source.kind.startswith("measured")


class _Version(msgspec.Struct):
    format: int


def parse_profile(raw: bytes, where: str) -> LatencyProfile:
    """A profile out of its JSON; raises ProfileError for another version or a file that is none."""
    try:
        version = msgspec.json.decode(raw, type=_Version).format
        if version != FORMAT:
            raise ProfileError(
                f"{where} has profile format {version}, this hexgraft reads format {FORMAT}",
                "measure again: hexgraft bench BUNDLE -o FILE",
            )
        profile = msgspec.json.decode(raw, type=LatencyProfile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProfileError(
            f"{where} is not a latency profile: {error}", "hexgraft bench BUNDLE -o FILE writes one"
        ) from error
    for role in ("target", "draft"):
        model = getattr(profile, role)
        if model is not None and not model.passes:
            raise ProfileError(f"{where} has no passes of the {role}", "hexgraft bench BUNDLE -o FILE")
    return profile


def read_profile(path: Path) -> LatencyProfile:
    """Read and check a profile; raises ProfileError."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_LIMIT)
    except OSError as error:
        failed = ProfileError(
            f"cannot read {path}: {error.strerror}", "hexgraft bench BUNDLE -o FILE writes a profile"
        )
        raise (mistyped(failed) if error.errno == errno.ENOENT else failed) from error
    return parse_profile(raw, str(path))


def check_output(path: Path) -> None:
    """Raises HexgraftError, before anything is measured, where no profile can be written for -o."""
    check_place(path, "-o", "profile.json")
    check_replaced(path, b'{\n "format":', "profile", "-o")


def write_profile(profile: LatencyProfile, path: Path) -> None:
    """Write a profile as indented JSON, over an older one."""
    write_whole(path, encode_profile(profile), replace=True)


def encode_profile(profile: LatencyProfile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"
