"""Latency profiles: written and read, refused where they are damaged, spreads of repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexgraft.host.measure.profile import (
    FORMAT,
    LatencyProfile,
    Machine,
    ModelTimes,
    PassTime,
    ProfileError,
    Source,
    Spread,
    encode_profile,
    parse_profile,
    read_profile,
    write_profile,
)


def profile(**changes: object) -> LatencyProfile:
    passes = [PassTime(1, 0, Spread.of([0.01, 0.02, 0.03])), PassTime(8, 0, Spread.single(0.04))]
    fields: dict[str, object] = {
        "format": FORMAT,
        "source": Source("hosted device", "2026-11-29", "a test"),
        "machine": Machine("a phone"),
        "backend": "device-htp",
        "target": ModelTimes("tiny", passes, [1, 8]),
    }
    return LatencyProfile(**(fields | changes))  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(profile(), path)
    assert read_profile(path) == profile()
    write_profile(profile(bundle="abc"), path)
    assert read_profile(path).bundle == "abc"


def test_a_spread_has_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.25, 1.75, 2)
    assert Spread.single(2.0).count == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b'"format": 1', b'"format": 2'), "profile format 2"),
        ((b'"width": 8', b'"width": 0'), "not a latency profile"),
        ((b'"hosted device"', b'"guessed"'), "not a latency profile"),
        ((b'"backend"', b'"backends"'), "not a latency profile"),
    ],
)
def test_damage_is_refused(change: tuple[bytes, bytes], message: str) -> None:
    raw = encode_profile(profile())
    assert change[0] in raw
    with pytest.raises(ProfileError, match=message) as raised:
        parse_profile(raw.replace(*change), "p.json")
    assert raised.value.hint
    assert raised.value.message.startswith("p.json")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read"):
        read_profile(tmp_path / "missing.json")
    with pytest.raises(ProfileError, match="no passes of the target"):
        parse_profile(encode_profile(profile(target=ModelTimes("tiny", []))), "p.json")


def test_only_what_we_measured_counts_as_measured() -> None:
    assert not profile().measured
    assert profile(source=Source("measured here", "2026-11-29", "a test")).measured
