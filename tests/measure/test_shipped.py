"""The profiles that come with hexgraft: predictions' raw material, every figure with the page it is from."""

from __future__ import annotations

import re

import pytest

from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.shipped import find_profile, shipped_profiles


def test_both_chips_are_there() -> None:
    assert {"snapdragon-8-gen-3", "snapdragon-8-elite"} <= set(shipped_profiles())


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_figure_has_its_page_and_nothing_is_called_measured(name: str) -> None:
    profile = find_profile(name)
    assert profile.source.kind == "published"
    assert not profile.measured
    assert "not a measurement" in profile.source.note
    assert "interpolated" in profile.source.note
    assert all(citation.address.startswith("https://") for citation in profile.source.citations)
    said = " ".join(citation.figure for citation in profile.source.citations)
    for model in (profile.target, profile.draft):
        assert model is not None
        one, wide = model.passes[0], model.passes[-1]
        assert (one.width, wide.width, one.how, wide.how) == (1, 128, "published", "published")
        speeds = [float(number) for number in re.findall(r"([\d.]+) tokens/s", said)]
        assert any(1 / one.seconds == pytest.approx(speed, rel=1e-3) for speed in speeds)
        for each in model.passes[1:-1]:
            assert each.how == "interpolated"
            line = one.seconds + (wide.seconds - one.seconds) * (each.width - 1) / 127
            assert each.seconds == pytest.approx(line, abs=2e-6)
    costs = Costs.of(profile)
    assert costs.verify(32, 0) > costs.plain(0) > costs.pass_of_draft(1, 0)
