"""Benches: what they find of a session whose times are known, and what the command shows and writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from lab_pair import PaidRows
from pair import make_pair
from shapes import WIDTHS, shaped_profile

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.measure.latency import Plan, measure_model, measure_plain, measure_row, measured_widths
from hexgraft.host.measure.profile import CacheTime, ModelTimes, ProfileError, Spread, read_profile
from hexgraft.host.measure.shaped import ShapedSession, VirtualClock
from hexgraft.host.measure.table import LatencyTable
from hexgraft.models.errors import UsageError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


def test_a_bench_finds_the_times_a_session_has(bundle: Bundle) -> None:
    """Exactly, since its clock is moved by the table alone."""
    table, clock = LatencyTable(shaped_profile("steep").target), VirtualClock()
    session = ShapedSession(CpuSession(bundle), table, clock.pay)
    ticks: list[int] = []
    plan = Plan(fills=(0, 40, 9999), repeats=3, clock=clock, progress=lambda: ticks.append(1))
    found = measure_model(session, bundle.target, plan)
    assert found.widths == list(WIDTHS)
    last = session.spec.capacity - WIDTHS[-1]  # stands in for the fill beyond it
    assert len(ticks) == plan.passes(session) == len(WIDTHS) * 3 * 5 + 2 + -(-(last - 40) // WIDTHS[-1])
    assert {(each.width, each.fill) for each in found.passes} == {
        (w, f) for w in WIDTHS for f in (0, 40, last)
    }
    for each in found.passes:
        assert each.seconds == pytest.approx(table.seconds(each.width, each.fill))
        assert each.call is not None
        assert each.call.count == each.graph.count == 3
    assert {(each.operation, each.rows) for each in found.cache} == {
        ("store", 1), ("move", 1), ("store", 8), ("move", 8)
    }  # fmt: skip
    assert all(each.time.median == 0 for each in found.cache)


def test_plain_rounds_cost_their_pass_and_what_is_beside_it(bundle: Bundle) -> None:
    table, clock = LatencyTable(shaped_profile("flat").target), VirtualClock()
    session = ShapedSession(CpuSession(bundle), table, clock.pay)
    host, endurance = measure_plain(session, [7, 8, 9], Plan(tokens=16, clock=clock))
    assert host.median == pytest.approx(0, abs=1e-9)
    assert endurance.tokens == 16
    assert endurance.first > endurance.sustained
    assert endurance.first == pytest.approx(20, rel=0.02)


def test_a_further_row_of_a_pass_is_timed(bundle: Bundle) -> None:
    clock = VirtualClock()
    session = PaidRows(CpuSession(bundle), clock, 0.003)
    found = measure_row(session, bundle.target, Plan(repeats=2, clock=clock))
    assert found is not None
    assert (found.median, found.count) == (pytest.approx(0.003), 2 * 7)
    assert measure_row(CpuSession(bundle, widths=[1]), bundle.target, Plan()) is None


def test_storing_rows_costs_by_the_row() -> None:
    times = msgspec.structs.replace(
        shaped_profile("flat").target,
        cache=[CacheTime("store", rows, Spread.single(0.001 + 0.002 * rows)) for rows in (1, 8)],
    )
    assert times.stored_row == pytest.approx(0.002)
    assert shaped_profile("flat").target.stored_row == 0


def test_a_table_pads_interpolates_and_ends() -> None:
    profile = shaped_profile("steep")
    table = LatencyTable(profile.target)
    assert table.seconds(5, 0) == table.seconds(8, 0) == pytest.approx(0.05 * 2.1)
    assert table.seconds(1, 128) == pytest.approx(0.05 * 1.05)
    assert table.seconds(1, 4000) == pytest.approx(0.05 * 1.1)
    with pytest.raises(ProfileError, match="up to 32 rows, not 33"):
        table.seconds(33, 0)
    free = LatencyTable(replace_widths(profile.target))
    assert free.seconds(6, 0) == pytest.approx(0.05 * (1.6 + 2.1) / 2)
    assert free.seconds(64, 0) == pytest.approx(0.05 * (5.5 + 2 * 2.3))
    assert table.total({(1, 0): 2, (8, 0): 1}) == pytest.approx(0.05 * (2 + 2.1))


def replace_widths(times: ModelTimes) -> ModelTimes:
    return msgspec.structs.replace(times, widths=None)


def test_a_width_without_a_time_is_refused() -> None:
    with pytest.raises(ProfileError, match="no time of width 64"):
        LatencyTable(msgspec.structs.replace(shaped_profile("flat").target, widths=[1, 64]))


def test_what_is_measured_where_any_width_runs(bundle: Bundle) -> None:
    assert list(measured_widths(CpuSession(bundle))) == [1, 2, 4, 8, 16, 32]
    assert measured_widths(CpuSession(bundle, widths=[8, 32])) == (8, 32)
    with pytest.raises(UsageError, match="--repeats 0"):
        Plan(repeats=0)
    session = CpuSession(bundle)
    assert replace(Plan(), fills=(9, 9999)).fills_of(session) == [9, session.spec.capacity - 32]


def test_the_command_writes_what_it_shows(bundle: Bundle, tmp_path: Path) -> None:
    profile, picture = tmp_path / "profile.json", tmp_path / "passes.svg"
    arguments = ["bench", str(bundle.path), "--repeats", "2", "--fills", "16", "--max-tokens", "8"]
    done = CliRunner().invoke(cli, [*arguments, "-o", str(profile), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    found = read_profile(profile)
    assert found.bundle == bundle.digest
    assert (found.source.kind, found.backend, found.target.widths) == ("measured here", "cpu", None)
    assert found.draft is not None
    assert found.machine.cores
    words = (bundle.target.name, "against one row", "one row more of a pass", "plain decoding, 8 tokens")
    for word in (*words, "quartiles"):
        assert word in done.stdout
    assert "<svg" in picture.read_text(encoding="utf-8")
    again = CliRunner().invoke(cli, [*arguments, "--widths", "8,16", "--json"])
    printed = json.loads(again.stdout)
    assert printed["target"]["widths"] == [8, 16]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--fills", "a"], "--fills 'a' is not a list"),
        (["--plot", "p.doc"], "has no picture format"),
        (["-o", "no/such/folder/p.json"], "folder"),
    ],
)
def test_bad_options_are_refused(bundle: Bundle, extra: list[str], message: str) -> None:
    arguments = ["bench", str(bundle.path), "--repeats", "1", "--warmup", "0", "--max-tokens", "4", *extra]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code != 0
    assert message in str(done.exception)
