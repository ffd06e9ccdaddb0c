"""The SoC table and the gate before compiling."""

from __future__ import annotations

from collections import Counter

import pytest

from hexgraft.export.htp.soc import SHARING_ARCH, check_soc, find_soc, find_socs, soc_table
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


def test_fp16_is_refused_where_the_chip_has_none() -> None:
    for name in ("SM8350", "QCS6490", "SM7750"):
        with pytest.raises(UsageError, match=r"--precision fp16 needs fp16 arithmetic.*" + name):
            check_soc(find_soc(name), needs_fp16="--precision fp16", shared=False, vtcm_mb=None)
        check_soc(find_soc(name), needs_fp16=None, shared=False, vtcm_mb=None)
    check_soc(find_soc("SM8650"), needs_fp16="--precision fp16", shared=True, vtcm_mb=8)


def test_sharing_below_v73_and_too_much_vtcm_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot share weights between graphs, that begins with V73") as got:
        check_soc(find_soc("SM8450"), needs_fp16=None, shared=True, vtcm_mb=None)
    assert got.value.hint is not None
    assert "--unshared" in got.value.hint
    with pytest.raises(UsageError, match="--vtcm 9 is more than the 8 MB"):
        check_soc(find_soc("SM8650"), needs_fp16=None, shared=True, vtcm_mb=9)
    with pytest.raises(UsageError, match="--vtcm 0 is not a size"):
        check_soc(find_soc("SM8650"), needs_fp16=None, shared=True, vtcm_mb=0)
