"""What an earlier run left: taken up, made again, never paid for twice."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hub_http
import pytest
from command import error_of, hexgraft, last_error_of, spawn
from hub_service import ONCE, Fault, HubServer, fail_once, kinds
from qai_hub.util import session as client_session
from tiny import write_tiny_hf

from hexgraft.host.bundle import open_bundle
from hexgraft.host.hub import service as service_module
from hexgraft.host.hub.book import BOOK
from hexgraft.host.hub.errors import AGAIN
from hexgraft.host.hub.records import read_records
from hexgraft.host.hub.service import Pace
from hexgraft.models.errors import CONNECTION_LOST, INTERRUPTED


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ----------------------------------------------------------------- killed, interrupted, cut off


def test_an_answer_that_was_lost_makes_no_second_job(
    account: HubServer, export: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was created, the answer cut off; by its name it is found again. (Had the client retries of its
    own left, it would submit again by itself.)"""
    monkeypatch.setattr(client_session, "MAX_RETRIES", 0)
    account.faults.append(Fault("POST /api/v1/jobs/", 1, lose=True))
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert kinds(account) == ONCE


def test_killed_between_submission_and_answer(account: HubServer, export: tuple[str, ...]) -> None:
    account.faults.append(Fault("POST /api/v1/jobs/", 1, stall=30))
    with spawn(*export) as process:
        until(lambda: bool(account.jobs) or process.poll() is not None)
        process.kill()
        process.wait()
    (first,) = account.jobs
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert f"compile job {first} of an earlier run" in done.stderr
    assert kinds(account) == ONCE


def test_what_was_packed_when_it_was_killed_goes_with_the_export(
    account: HubServer, export: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    account.faults.append(Fault("PUT /upload", 1, stall=30))
    with spawn(*export) as process:
        until(lambda: any(line.startswith("PUT") for line in account.seen) or process.poll() is not None)
        process.kill()
        process.wait()
    assert list(temporary.glob("*.zip")) == list(temporary.glob("hexgraft*")) == []
    assert list((tmp_path / ".b.unfinished").rglob("*.zip"))
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert list(tmp_path.glob(".b.*")) == []
    assert list(tmp_path.rglob("*.zip")) == []


def test_interrupted_while_waiting(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    account.open.clear()
    with spawn(*export) as process:
        until(lambda: len(account.jobs) == 2 or process.poll() is not None)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=300)
    assert process.returncode == INTERRUPTED, errors
    assert out == b""
    account.open.set()
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("of an earlier run") == 2
    assert "uploading" not in done.stderr
    assert kinds(account) == ONCE


def test_jobs_that_never_end(
    account: HubServer, export: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """We stop waiting, they go on."""
    account.open.clear()
    with monkeypatch.context() as patch:
        patch.setattr(service_module, "PACE", Pace((0.01, 0.01), (), 0.2))
        result = hexgraft(*export)
    message, hint = last_error_of(result)
    assert result.exit_code == CONNECTION_LOST
    assert message == "2 jobs at AI Hub still run after 0 min"
    assert hint == AGAIN
    account.open.set()
    until(lambda: all(job.target_model.model_id for job in account.of_kind("compile_job")))
    assert hexgraft(*export).exit_code == 0
    assert kinds(account) == ONCE


# ----------------------------------------------------------------- failed


def test_a_failed_job_and_its_reason(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    reason = f"Node MatMul_7 has no kernel; see {account.address('log')}"
    message, hint = last_error_of(fail_once(account, "target_ar8", reason, *export))
    assert message == (
        "the compile job of target_ar8_cl72 sm8650 fp16 failed on Samsung Galaxy S24: Node MatMul_7 has no "
        f"kernel; see http://127.0.0.1:{account.storage.server_port}/log"
    )
    (failed,) = [job for job in account.of_kind("compile_job") if job.failure_reason]
    assert hint == f"its log is at {account.config.web_url}/jobs/{failed.compile_job_id}/"
    assert not (tmp_path / "b").exists()
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert f"job {failed.compile_job_id} of an earlier run failed, submitting it again" in done.stderr
    assert kinds(account) == {"compile": 3, "link": 1, "upload": 2}


def test_a_failed_job_is_not_taken_for_the_one_that_was_refused(
    account: HubServer, export: tuple[str, ...]
) -> None:
    """It has the same name; the answer to its second submission is a fault on the way."""
    fail_once(account, "target_ar8", "the device went away", *export)
    account.faults.append(Fault("POST /api/v1/jobs", 9, 503))
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert account.faults[0].times == 0
    assert kinds(account) == {"compile": 3, "link": 1, "upload": 2}


def test_a_job_that_failed_before_it_was_found_is_not_paid_for_twice(
    account: HubServer, export: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its submission was lost; by then it had failed."""
    monkeypatch.setattr(client_session, "MAX_RETRIES", 0)
    monkeypatch.setattr(service_module, "PACE", Pace((0.02, 0.05), (1.0,), 1200.0))
    account.faults.append(Fault("POST /api/v1/jobs/", 1, lose=True))
    result = fail_once(account, "target_ar1", "the graph is cursed", *export)
    assert "the compile job of target_ar1_cl65 sm8650 fp16 failed" in last_error_of(result)[0]
    assert kinds(account) == {"compile": 2, "link": 0, "upload": 2}


# ----------------------------------------------------------------- lost there


def test_what_the_service_has_lost_is_made_again(
    account: HubServer, export: tuple[str, ...], tmp_path: Path
) -> None:
    fail_once(account, "^hexgraft target sm8650", "out of memory", *export)
    job = account.of_kind("compile_job")[0]
    account.forget = {job.compile_job_id, job.model.model_id}
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert f"AI Hub does not know job {job.compile_job_id} any more" in done.stderr
    assert f"AI Hub has lost model {job.model.model_id}, uploading it again" in done.stderr
    assert kinds(account) == {"compile": 3, "link": 2, "upload": 3}


def test_what_jobs_made_and_the_service_lost_is_made_again(
    account: HubServer, export: tuple[str, ...]
) -> None:
    """AI Hub deletes models after some time, and keeps the jobs that made them."""
    fail_once(account, "^hexgraft target sm8650", "out of memory", *export)
    job = account.of_kind("compile_job")[0]
    account.forget = {job.target_model.model_id}
    account.faults.append(Fault("GET /download", 10_000, 503))
    done = hexgraft(*export)
    assert done.exit_code == CONNECTION_LOST
    said = f"AI Hub has lost what job {job.compile_job_id} made, submitting it again"
    assert done.stderr.count(said) == 1
    assert kinds(account) == {"compile": 3, "link": 2, "upload": 2}
    account.faults.clear()
    link = account.of_kind("link_job")[1]
    account.forget = {link.target_model.model_id}
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert f"AI Hub has lost what job {link.link_job_id} made, submitting it again" in done.stderr
    assert kinds(account) == {"compile": 3, "link": 3, "upload": 2}


def test_a_job_that_lost_what_it_made_is_not_taken_for_the_one_that_was_refused(
    account: HubServer, export: tuple[str, ...]
) -> None:
    """It has the same name, and is done as far as AI Hub knows."""
    fail_once(account, "^hexgraft target sm8650", "out of memory", *export)
    account.forget = {account.of_kind("compile_job")[0].target_model.model_id}
    account.faults.append(Fault("POST /api/v1/jobs", 9, 503))
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert account.faults[0].times == 0
    assert kinds(account) == {"compile": 3, "link": 2, "upload": 2}


def test_what_is_linked_needs_no_compile_jobs(account: HubServer, export: tuple[str, ...]) -> None:
    account.faults.append(Fault("GET /download", 10_000, 503))
    assert hexgraft(*export).exit_code == CONNECTION_LOST
    account.faults.clear()
    account.forget = {job.target_model.model_id for job in account.of_kind("compile_job")}
    account.forget |= {job.compile_job_id for job in account.of_kind("compile_job")}
    planned = hexgraft(*export, "--dry-run")
    assert "0 of 1 jobs would be submitted, 0.0 MB uploaded" in planned.stderr
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert kinds(account) == ONCE


# ----------------------------------------------------------------- the job book


def test_a_dry_run_tells_how_earlier_jobs_stand(account: HubServer, export: tuple[str, ...]) -> None:
    """One is done, one failed and will be submitted again, and one was never sent."""

    def states() -> list[str]:
        planned = hexgraft(*export, "--dry-run", "--json")
        assert planned.exit_code == 0, planned.stderr
        return [job["state"] for job in json.loads(planned.stdout)["jobs"]]

    refused = '{"detail": "Compile quota of 10 jobs a day is used up."}'
    account.faults.append(Fault("POST /api/v1/jobs/", 10_000, 429, refused))
    assert hexgraft(*export).exit_code == 1
    assert states() == ["new", "new", "new"]
    account.faults.clear()
    fail_once(account, "target_ar8", "the graph is cursed", *export)
    assert states() == ["done", "failed", "new"]
    planned = hexgraft(*export, "--dry-run")
    assert "2 of 3 jobs would be submitted, 0.0 MB uploaded" in planned.stderr
    account.forget = {account.of_kind("compile_job")[0].target_model.model_id}
    assert states() == ["lost", "failed", "new"]
    assert kinds(account) == {"compile": 2, "link": 0, "upload": 2}


def test_a_book_that_was_removed(account: HubServer, tmp_path: Path) -> None:
    """As the hint for a damaged one says. What it knew of finished binaries is lost, they are not."""
    target = write_tiny_hf(tmp_path / "target")
    draft = write_tiny_hf(tmp_path / "draft", noise_of=target, noise=0.1)
    place = ("export", target, "--draft", draft, "-o", tmp_path / "b", "--widths", "8", "--context", "64")
    place = (*place, "--via", "aihub", "--soc", "SM8650")
    fail_once(account, "^hexgraft draft", "no", *place)
    (tmp_path / ".b.unfinished" / BOOK).unlink()
    done = hexgraft(*place)
    assert done.exit_code == 0, done.stderr
    assert "the job book does not hold its jobs any more" in done.stderr
    assert kinds(account) == {"compile": 3, "link": 2, "upload": 3}
    bundle = open_bundle(tmp_path / "b")
    bundle.verify()
    records = read_records(bundle)
    assert records is not None
    assert [record.binary.split("/")[0] for record in records.binaries] == ["draft"]


def test_a_damaged_book_is_named(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    fail_once(account, "target_ar8", "no", *export)
    (tmp_path / ".b.unfinished" / BOOK).write_text("{", encoding="utf-8")
    message, hint = error_of(hexgraft(*export))
    assert "is not a job book" in message
    assert "remove it" in hint


NEW = ("Aphone 1", "14", 57, "v75", "sm8650", True)
LATER = ("Samsung Galaxy S24", "15", 57, "v75", "sm8650", True)


@pytest.mark.parametrize(
    ("option", "since", "old_book", "told"),
    [
        (("--soc", "SM8650"), NEW, False, True),
        (("--soc", "SM8650"), NEW, True, True),
        (("--soc", "SM8650"), LATER, False, False),
        (("--soc", "SM8650"), LATER, True, False),
        (("--device", "samsung galaxy s24"), NEW, False, False),
        (("--device", "samsung galaxy s24"), LATER, False, True),
    ],
)
def test_jobs_go_on_where_they_are_whatever_is_listed_since(
    option: tuple[str, str],
    since: tuple[Any, ...],
    old_book: bool,
    told: bool,
    account: HubServer,
    export: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another device would be taken for the chip then, or a newer system of the one that is named. Books of
    old do not say which system it was."""
    place = (*export[:-2], *option)
    fail_once(account, "^hexgraft target sm8650", "no", *place)
    book = tmp_path / ".b.unfinished" / BOOK
    pages = json.loads(book.read_text())
    assert [job.pop("os") for job in pages["jobs"].values()] == ["14"] * 3
    if old_book:
        book.write_text(json.dumps(pages))
    monkeypatch.setattr(hub_http, "DEVICES", (since, *hub_http.DEVICES))
    done = hexgraft(*place)
    assert done.exit_code == 0, done.stderr
    assert kinds(account) == {"compile": 2, "link": 2, "upload": 2}
    assert ("taking Samsung Galaxy S24 (Android 14), which has jobs of an earlier run" in done.stderr) == told


def test_jobs_of_a_device_that_is_gone_are_made_on_another(
    account: HubServer, export: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(account, "^hexgraft target sm8650", "no", *export)
    monkeypatch.setattr(hub_http, "DEVICES", (NEW, *hub_http.DEVICES[1:]))
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert kinds(account) == {"compile": 4, "link": 2, "upload": 2}


def test_a_changed_model_is_another_upload(account: HubServer, tmp_path: Path) -> None:
    account.fail_jobs["^hexgraft target sm8650"] = "out of memory"
    for seed in (0, 0, 1):
        checkpoint = write_tiny_hf(tmp_path / "tiny", seed=seed)
        place = ("export", checkpoint, "-o", tmp_path / "b", "--widths", "1,8", "--context", "64")
        assert hexgraft(*place, "--via", "aihub", "--soc", "SM8650").exit_code == 1
    assert kinds(account) == {"compile": 4, "link": 3, "upload": 4}
