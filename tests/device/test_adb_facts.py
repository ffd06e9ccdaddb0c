"""What phones say of themselves, including those that say it differently or not at all."""

from __future__ import annotations

import pytest
from phones import Connect

from hexgraft.host.adb.facts import Zone, gather, parse, parse_df
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.loopback.phone import PHONES, PhoneModel

BARE = "=== properties\n=== memory\n=== space\n=== loader\naarch64\n=== boot\n=== thermal\n=== nodes\n"


@pytest.mark.parametrize("name", list(PHONES))
def test_a_phone_is_what_it_presents(connect: Connect, name: str) -> None:
    model = PHONES[name]
    device = connect(model)
    device.set_space(10_000_000_000)
    facts = gather(open_phone(device.serial))
    assert (facts.model, facts.soc, facts.android, facts.api) == (
        model.model,
        model.soc,
        model.android,
        model.api,
    )
    assert facts.memory == model.memory_mb << 20
    assert facts.memory_free == model.available_mb << 20
    assert facts.space_free is not None
    assert 9_999_000_000 < facts.space_free <= 10_000_000_000
    assert facts.hottest == Zone("cpu-0-0-0", 36.1)
    assert [clock.top for clock in facts.clocks] == list(model.clocks_khz)
    assert (facts.battery, facts.plugged, facts.awake) == (82, True, True)
    assert facts.nodes == sorted(node.rpartition("/")[2] for node in model.nodes)
    assert facts.vendor_qnn == [file.rpartition("/")[2] for file in model.vendor if "libQnn" in file]
    assert facts.target.startswith("linux-")
    assert len(facts.boot) == 32


def test_a_sleeping_unplugged_phone(connect: Connect) -> None:
    facts = gather(open_phone(connect(PhoneModel(awake=False, plugged=False, battery=9)).serial))
    assert (facts.battery, facts.plugged, facts.awake) == (9, False, False)


def test_a_phone_that_says_nothing() -> None:
    facts = parse("X", BARE)
    assert facts.target == "linux-aarch64"
    assert (facts.model, facts.soc, facts.zones, facts.nodes) == ("", "", [], [])
    assert (facts.api, facts.memory, facts.space_free, facts.battery, facts.awake) == (None,) * 5
    assert facts.hottest is None


def test_no_output_at_all() -> None:
    assert parse("X", "").target == "linux-"


def test_android_is_told_by_its_loader() -> None:
    text = BARE.replace("aarch64", "/system/bin/linker64\naarch64")
    assert parse("X", text).target == "android-arm64"
    assert parse("X", text.replace("aarch64", "x86_64")).target == "android-x86_64"


def test_carriage_returns_and_odd_zones() -> None:
    text = BARE.replace(
        "=== thermal\n",
        "=== thermal\r\nskin 312\r\nbroken \r\ncpu 41500\r\nbig 38\r\nnone -274000\r\nhot 999999\r\n",
    )
    facts = parse("X", text)
    assert facts.zones[:3] == [Zone("skin", 31.2), Zone("cpu", 41.5), Zone("big", 38.0)]
    assert facts.hottest == Zone("cpu", 41.5)


def test_properties_with_brackets_and_spaces() -> None:
    text = BARE.replace(
        "=== properties\n", "=== properties\n[ro.product.model]: [A [b] c]\n[ro.soc.model]: []\n"
    )
    facts = parse("X", text)
    assert facts.model == "A [b] c"
    assert facts.soc == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Filesystem 1K-blocks Used Available\n/dev/dm-9 100 40 60 40% /data", (102400, 61440)),
        ("Filesystem 1K-blocks Used Available\n/dev/a/very/long/name\n 100 40 60 40% /data", (102400, 61440)),
        ("df: /data: Permission denied", (None, None)),
        ("", (None, None)),
    ],
)
def test_free_space(text: str, expected: tuple[int | None, int | None]) -> None:
    assert parse_df(text.splitlines()) == expected
