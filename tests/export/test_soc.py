"""The SoC table and the gate before compiling."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import SHARING_ARCH, find_soc, find_socs, soc_table
from hexgraft.models.errors import UsageError


def test_no_name_stands_for_two_chips() -> None:
    names = Counter(
        name.lower()
        for soc in soc_table()
        for name in {*soc.chips, *soc.market, *soc.ro_soc, *soc.board, str(soc.soc_model)}
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_the_table_spans_v68_to_v85_and_sharing_begins_with_v73() -> None:
    assert {soc.arch for soc in soc_table()} == {68, 69, 73, 75, 79, 81, 85}
    assert all(soc.sharing == (soc.arch >= SHARING_ARCH) for soc in soc_table())


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("SM8650", 57),
        ("sm8650", 57),
        ("Snapdragon 8 Elite", 69),
        ("snapdragon-8-elite", 69),
        ("Snapdragon 8 Elite Gen 5", 87),
        ("Snapdragon 8+ Gen 1", 42),
        ("Snapdragon 8 Gen 1", 36),
        ("pineapple", 57),
        ("QCM6490", 93),
        ("103", 103),
    ],
)
def test_names_find_their_chip(name: str, model: int) -> None:
    assert find_soc(name).soc_model == model


def test_several_names_of_one_chip_are_one() -> None:
    assert [soc.soc_model for soc in find_socs(["SM8750", "sun", "SM8650"])] == [69, 57]


@pytest.mark.parametrize(
    ("name", "close"), [("SM8651", "SM8650"), ("Snapdragon 8 Elit", "Snapdragon 8 Elite")]
)
def test_an_unknown_chip_names_the_closest(name: str, close: str) -> None:
    with pytest.raises(UsageError, match=f"unknown SoC '{name}'") as caught:
        find_soc(name)
    assert caught.value.hint is not None
    assert close in caught.value.hint


def options(*socs: str, precision: str = "fp16", **more: Any) -> HtpOptions:
    chosen = {key: more.pop(key) for key in ("block", "embed", "head", "keep") if key in more}
    return HtpOptions(
        find_socs(socs), make_precision(precision, **chosen), block_given="block" in chosen, **more
    )


def refusal(plan: HtpOptions, widths: tuple[int, ...] = (1,), head: bool = False) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        plan.check(widths, head)
    assert caught.value.hint is not None
    return caught.value.message, caught.value.hint


def test_fp16_is_refused_where_the_chip_has_none() -> None:
    for name in ("SM8350", "QCS6490", "SM7750"):
        message, hint = refusal(options(name))
        assert re.match(r"--precision fp16 needs fp16 arithmetic.*" + name, message)
        assert hint == "use --precision w8a16"
        options(name, precision="w8a16").check((1,))
    options("SM8650", vtcm_mb=8).check((1, 16), head=True)


@pytest.mark.parametrize(
    ("wishes", "hint"),
    [
        ({"precision": "w8a16", "head": "fp16"}, "use --head w8"),
        ({"precision": "w8a16", "embed": "w8"}, "leave out --embed"),
        ({"precision": "w8a16", "keep": "layers.0"}, "keep at w8: --keep LAYER:w8"),
        ({"precision": "w4a16", "block": 32}, "use --block 0"),
    ],
)
def test_each_wish_for_fp16_is_answered_by_itself(wishes: dict[str, Any], hint: str) -> None:
    assert refusal(options("SM7750", **wishes))[1] == hint
    options("SM8650", **wishes).check((1,))


def test_sharing_below_v73_and_too_much_vtcm_are_refused() -> None:
    message, hint = refusal(options("SM8450"), (1, 16))
    assert "cannot share weights between graphs, that begins with V73" in message
    assert "--unshared" in hint
    assert "--vtcm 9 is more than the 8 MB" in refusal(options("SM8650", vtcm_mb=9))[0]
    assert "--vtcm 0 is not a size" in refusal(options("SM8650", vtcm_mb=0))[0]


def test_all_that_cannot_be_is_said_at_once() -> None:
    """So that a command mended as the hint says is not refused for the next thing."""
    plan = options("SM8350", "SM7750", vtcm_mb=64, part_bytes=1, host_widths=(4,), min_agreement=1.5)
    message, hint = refusal(plan, (1, 16), head=True)
    for what, instead in (
        ("--precision fp16 needs fp16 arithmetic, which the NPU of SM8350", "use --precision w8a16"),
        ("--precision fp16 needs fp16 arithmetic, which the NPU of SM7750", "use --precision w8a16"),
        ("a draft head reads its target in fp16, which SM8350", "leave out --draft, or give a draft model"),
        ("SM8350 (Snapdragon 888, V68) cannot share weights", "use --unshared"),
        ("--vtcm 64 is more than the 4 MB", "use --vtcm 4 or less"),
        ("--part-size is below 1 MB", "--part-size 512"),
        ("--host-widths 4 is not among", "leave out --host-widths"),
        ("--min-agreement 1.5 is not between", "0.98"),
    ):
        assert what in message
        assert instead in hint
    assert hint.count("w8a16;") == 1
    mended = options(
        "SM8350",
        "SM7750",
        precision="w8a16",
        shared=False,
        vtcm_mb=4,
        part_bytes=512 << 20,
        min_agreement=0.98,
    )
    mended.check((1, 16))
