"""The options of drafters that the documentation lists are those there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hexgraft.host.drafters.knobs import KNOBS, defaults, parse_knobs
from hexgraft.host.drafters.registry import DRAFTERS, PLAIN
from hexgraft.models.errors import UsageError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"


def test_the_page_lists_every_option_with_its_default() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## A drafter's own parameters\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, re.MULTILINE))
    listed = {name: re.findall(r"`([^`]+)`", cell) for name, cell in rows.items()}
    assert listed == {
        name: [f"{option}={value}" if value else option for option, value in defaults(name).items()]
        for name in DRAFTERS
        if name != PLAIN
    }
    told = set(re.findall(r"`(\w+)`", section.split("\n\n", 2)[2]))
    assert {option for name in KNOBS for option in defaults(name)} <= told


@pytest.mark.parametrize("drafter", list(KNOBS))
def test_defaults_are_typed_as_they_are_listed(drafter: str) -> None:
    typed = parse_knobs(drafter, [f"{name}={value}" for name, value in defaults(drafter).items() if value])
    for kind in KNOBS[drafter]:
        assert typed.of(kind) == kind()


@pytest.mark.parametrize("text", ["q", "nan", "", "-7", "1e300"])
def test_what_a_hint_says_can_be_typed(text: str) -> None:
    """For every option of every drafter it names that very option, with a value that is taken."""
    refused = 0
    for drafter in KNOBS:
        for name in defaults(drafter):
            try:
                parse_knobs(drafter, [f"{name}={text}"])
                continue
            except UsageError as error:
                hint = error.hint or ""
            refused += 1
            assert hint.startswith(f"example: --draft-option {name}="), (drafter, name)
            parse_knobs(drafter, [hint.split()[-1]])
    assert refused > 5
