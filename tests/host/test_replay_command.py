"""`hexgraft replay`: traces of the same bundle, of another one, and sessions that compute something else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command import error_of, hexgraft
from pair import write_pair

from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.measure.wrapped import WrappedRows
from hexgraft.host.session import CacheRows, Floats, Session, Visibility
from hexgraft.host.traces.trace_file import read_trace


def test_replay_of_the_same_session_finds_no_difference(bundle: Path, traces: dict[str, Path]) -> None:
    done = hexgraft("replay", traces["levels"], bundle, "--check-cache")
    assert done.exit_code == 0
    assert "Every logit is the same." in done.stdout
    assert "30 of 30 best tokens the same, max error 0." in done.stdout
    assert "Cache: no damage." in done.stdout
    assert done.stderr.startswith("note: both sessions are the same; choose another")


def test_replay_takes_widths_from_the_trace(bundle: Path, traces: dict[str, Path]) -> None:
    done = hexgraft("replay", traces["padded"], bundle, "--reference-widths", "any", "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["other"]["widths"] == [1, 8, 16, 32]
    assert found["reference"]["widths"] is None
    assert found["total"]["max_error"] < 1e-3
    assert found["total"]["agreement"] == 1
    assert found["recorded"] == {"rows": 30, "agreed": 30, "max_error": 0}
    trace = read_trace(traces["padded"])
    nodes = [(r["round"], n["node"]) for r in found["rounds"] for n in r["nodes"]]
    assert nodes == [(r.number, node) for r in trace.rounds for node in range(len(r.tokens))]


@pytest.mark.parametrize(
    ("option", "value"), [("--threads", "-1"), ("--threads", "5000"), ("--cache-noise", "-1.0")]
)
def test_replay_refuses_numbers_that_mean_nothing(
    bundle: Path, traces: dict[str, Path], option: str, value: str
) -> None:
    done = hexgraft("replay", traces["plain"], bundle, option, value)
    assert done.exit_code == 2
    assert error_of(done)[0].startswith(f"{option}: {value} is not in the range")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("device", "htp")),
        (["--backend", "device"], ("device", "htp")),
        (["--backend", "device", "--provider", "cpu"], ("device", "cpu")),
        (["--backend", "runner"], ("runner", "cpu")),
    ],
)
def test_replay_looks_into_the_npu_that_was_traced(
    bundle: Path, traces: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], expected: tuple[str, str],
) -> None:  # fmt: skip
    file = tmp_path / "phone.jsonl"
    file.write_text(traces["plain"].read_text().replace('"backend":"cpu"', '"backend":"device-htp"', 1))
    opened: list[tuple[str, str]] = []

    def open_role(found: Bundle, role: str, options: dict[str, Any]) -> Session:
        opened.append((options["backend"], options["provider"]))
        return CpuSession(found, role)

    monkeypatch.setattr("hexgraft.host.cli.replay.open_role", open_role)
    assert hexgraft("replay", file, bundle, *words).exit_code == 0
    assert opened == [expected, ("cpu", "cpu")]


class Broken(CpuSession):
    """Says NaN of one token, that another one is certain, and holds a cell that is no number."""

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> BrokenRows:
        return BrokenRows(super().forward(tokens, positions, visible))

    def save(self, count: int) -> CacheRows:
        rows = super().save(count)
        rows.keys[1, 0, 2, 0] = math.nan
        return rows


class BrokenRows(WrappedRows):
    def logits(self, row: int) -> Floats:
        logits = super().logits(row)
        logits[int(logits.argmax())] = math.inf
        logits[0] = math.nan
        return logits


def test_replay_of_what_is_not_finite_is_json_all_the_same(
    bundle: Path, traces: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_bundle(bundle)
    sessions: list[Session] = [Broken(opened), CpuSession(opened)]
    monkeypatch.setattr("hexgraft.host.cli.replay.open_role", lambda *asked: sessions.pop(0))
    done = hexgraft("replay", traces["levels"], bundle, "--check-cache", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["total"]["not_finite"] == found["total"]["rows"]
    assert found["recorded"]["max_error"] is None
    assert found["worst"][0]["kl"] is None
    damage = found["damage"]
    assert (damage["layer"], damage["slot"], damage["part"], damage["dim"]) == (1, 0, "key", 2)
    assert damage["found"] is None
    assert isinstance(damage["expected"], float)


def test_replay_on_another_model_says_so_and_compares(
    bundle: Path, traces: dict[str, Path], tmp_path: Path
) -> None:
    """Another model of the same vocabulary: far from what was recorded, and compared nevertheless."""
    other = write_pair(tmp_path, seed=5)
    done = hexgraft("replay", traces["levels"], other, "--json")
    assert "recorded with another bundle" in done.stderr
    found = json.loads(done.stdout)
    assert found["total"]["max_error"] == 0
    assert found["recorded"]["max_error"] > 1
    foreign = write_pair(tmp_path / "foreign", vocab=400)
    refused = hexgraft("replay", traces["levels"], foreign)
    assert "whose vocabulary is not that of this bundle" in error_of(refused)[0]
