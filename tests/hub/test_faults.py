"""Everything that goes wrong at AI Hub or on the way there: words, exit codes, nothing paid for twice."""

from __future__ import annotations

import errno
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import error_of, hexgraft, last_error_of, spawn
from hub_http import SIGNATURE, TOKEN
from hub_service import Fault, HubServer
from qai_hub.util import session as client_session
from tiny import write_tiny_hf

from hexgraft.host.bundle import open_bundle
from hexgraft.host.hub import service as service_module
from hexgraft.host.hub.book import BOOK, JobBook
from hexgraft.host.hub.records import read_records
from hexgraft.host.hub.service import Pace
from hexgraft.models.errors import CONNECTION_LOST, INTERRUPTED

FAST = Pace((0.02, 0.05), (0.01, 0.01), 1200.0)
AGAIN = "run the same command again later: it takes up its jobs where they are, none is paid for twice"


def kinds(server: HubServer) -> dict[str, int]:
    """Jobs submitted and models uploaded so far."""
    jobs = {kind: len(server.of_kind(f"{kind}_job")) for kind in ("compile", "link")}
    return {**jobs, "upload": sum(line == "POST /api/v1/models/" for line in server.seen)}


ONCE = {"compile": 2, "link": 1, "upload": 2}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ----------------------------------------------------------------- refused


def test_a_wrong_token(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    ini = tmp_path / "client.ini"
    ini.write_text(ini.read_text(encoding="utf-8").replace(TOKEN, "a" * 40), encoding="utf-8")
    result = hexgraft(*export)
    message, hint = error_of(result)
    assert result.exit_code == 1
    assert message == "AI Hub does not take the token while listing devices"
    assert "qai-hub configure --api_token TOKEN" in hint
    assert "a" * 40 not in result.output


def test_what_the_account_may_not_do(account: HubServer, export: tuple[str, ...]) -> None:
    """The answer quotes the token, as careless servers do."""
    detail = f'{{"detail": "Header token {TOKEN} may not use this project."}}'
    account.faults.append(Fault("POST /api/v1/jobs/", 1, 403, detail))
    message, hint = last_error_of(hexgraft(*export))
    assert message == (
        "AI Hub does not allow submitting hexgraft target_ar1_cl65 sm8650 fp16 "
        f"{account_key(account)}: Header token [token] may not use this project"
    )
    assert "hexgraft hub login-check" in hint


def account_key(server: HubServer) -> str:
    book = next(server.folder.parent.glob(".b.unfinished"))
    jobs = JobBook(book, server.config.api_url).jobs
    return next(iter(jobs))[:12]


def test_each_wait_for_another_try_is_told(account: HubServer) -> None:
    account.faults.append(Fault("GET /api/v1/users", 10_000, 503))
    result = hexgraft("hub", "login-check")
    message, _ = last_error_of(result)
    assert message == "AI Hub failed with status 503 while looking up the account"
    assert result.stderr.count(f"{message}; trying again in ") == len(service_module.PACE.retries) > 0


@pytest.mark.parametrize(
    ("status", "body", "words", "code"),
    [
        (429, '{"detail": "Compile quota of 10 jobs a day is used up."}', "quota or rate limit stops", 1),
        (500, "", "AI Hub failed with status 500", CONNECTION_LOST),
        (503, "", "AI Hub failed with status 503", CONNECTION_LOST),
        (426, "", "no longer takes this client", 1),
        (413, "", "finds it too large", 1),
        (400, '{"detail": "Unknown option --frobnicate."}', "Unknown option --frobnicate", 1),
    ],
)
def test_a_refusal_that_lasts(
    status: int, body: str, words: str, code: int, account: HubServer, export: tuple[str, ...], tmp_path: Path
) -> None:
    account.faults.append(Fault("POST /api/v1/jobs/", 10_000, status, body))
    result = hexgraft(*export)
    message, hint = last_error_of(result)
    assert result.exit_code == code
    assert words in message
    assert hint
    assert account.jobs == {}
    assert not (tmp_path / "b").exists()
    if code == CONNECTION_LOST or status == 429:
        assert hint == AGAIN
    account.faults.clear()
    assert hexgraft(*export).exit_code == 0
    assert kinds(account) == ONCE


@pytest.mark.parametrize(
    ("match", "status"),
    [
        ("GET /api/v1/devices", 500),
        ("POST /api/v1/models/$", 429),
        ("PUT /upload", 503),
        ("POST /api/v1/jobs", 429),
        ("POST /api/v1/jobs", 500),
        ("GET /api/v1/jobs", 429),
        ("GET /download", 503),
    ],
)
def test_a_refusal_that_passes(
    match: str, status: int, account: HubServer, export: tuple[str, ...], tmp_path: Path
) -> None:
    account.faults.append(Fault(match, 9, status))
    result = hexgraft(*export)
    assert result.exit_code == 0, result.stderr
    assert account.faults[0].times == 0
    assert [kinds(account)[kind] for kind in ("compile", "link")] == [2, 1]
    open_bundle(tmp_path / "b").verify()


def test_no_answer(
    account: HubServer, export: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own wait for an answer, shortened from 28 s."""
    monkeypatch.setattr(client_session.create_session, "__defaults__", (True, 0.2, "library"))
    monkeypatch.setattr(client_session, "MAX_RETRIES", 1)
    account.faults.append(Fault("GET /api/v1/devices", 10_000, hang=0.6))
    result = hexgraft(*export)
    message, hint = last_error_of(result)
    assert result.exit_code == CONNECTION_LOST
    assert result.stdout == ""
    assert message == "the connection to AI Hub was lost while listing devices"
    assert hint == AGAIN


def test_nobody_there(account: HubServer, export: tuple[str, ...]) -> None:
    account.close()
    result = hexgraft(*export)
    message, _ = last_error_of(result)
    assert message == "the connection to AI Hub was lost while listing devices"
    assert result.stdout == ""
    assert result.stderr.count(f"{message}; trying again in ") == len(service_module.PACE.retries)


def test_storage_credentials_that_ran_out(
    account: HubServer, export: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They last minutes; the next try gets new ones."""
    account.credentials = True
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{account.storage.server_port}")
    expired = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    account.faults.append(Fault("PUT /shelf", 9, 403, expired))
    result = hexgraft(*export)
    assert result.exit_code == CONNECTION_LOST
    assert "the storage behind AI Hub refused uploading hexgraft target_ar1_cl65" in last_error_of(result)[0]
    account.faults[:] = [Fault("PUT /shelf", 1, 403, expired), Fault("HEAD /shelf", 1, 403, expired)]
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert [fault.times for fault in account.faults] == [0, 0]
    assert SIGNATURE not in result.output + done.output


def test_a_full_disk_here_is_not_ai_hubs_fault(
    account: HubServer, export: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*places: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("qai_hub.api_utils.shutil.move", full)
        result = hexgraft(*export)
    message, hint = last_error_of(result)
    assert result.exit_code == 1
    assert message == "this machine refuses downloading target.bin: No space left on device"
    assert hint.startswith("free some space: `df -h` shows where")
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
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


# ----------------------------------------------------------------- jobs


def test_a_failed_job_and_its_reason(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    account.fail_jobs["target_ar8"] = f"Node MatMul_7 has no kernel; see {account.address('log')}"
    message, hint = last_error_of(hexgraft(*export))
    assert message == (
        "the compile job of target_ar8_cl72 sm8650 fp16 failed on Samsung Galaxy S24: Node MatMul_7 has no "
        f"kernel; see http://127.0.0.1:{account.storage.server_port}/log"
    )
    (failed,) = [job for job in account.of_kind("compile_job") if job.failure_reason]
    assert hint == f"its log is at {account.config.web_url}/jobs/{failed.compile_job_id}/"
    assert not (tmp_path / "b").exists()
    account.fail_jobs.clear()
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert f"job {failed.compile_job_id} of an earlier run failed, submitting it again" in done.stderr
    assert kinds(account) == {"compile": 3, "link": 1, "upload": 2}


def test_a_real_reason(account: HubServer, tmp_path: Path) -> None:
    """The compiler's own, met by the service: an operator that the NPU does not have."""
    checkpoint = write_tiny_hf(tmp_path / "tiny")
    place = ("export", checkpoint, "-o", tmp_path / "b", "--widths", "1", "--context", "32")
    account.workshop.spoil = True
    message, _ = last_error_of(hexgraft(*place, "--via", "aihub", "--soc", "SM8650"))
    assert "the link job of target_ar1_cl33 sm8650 fp16 failed on Samsung Galaxy S24" in message
    assert "the NPU refuses the operator" in message


def test_a_lost_download(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    """Cut off half way, once and for good; the next run downloads and does nothing else."""
    account.faults.append(Fault("GET /download", 10_000, lose=True))
    result = hexgraft(*export)
    message, hint = last_error_of(result)
    assert result.exit_code == CONNECTION_LOST
    assert message == "the connection to AI Hub was lost while downloading target.bin"
    assert hint == AGAIN
    assert list((tmp_path / ".b.unfinished").rglob("*.bin")) == []
    account.faults[:] = [Fault("GET /download", 1, lose=True)]
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert kinds(account) == ONCE
    open_bundle(tmp_path / "b").verify()


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
    monkeypatch.setattr(service_module, "PACE", Pace((0.01, 0.01), (), 0.2))
    account.open.clear()
    result = hexgraft(*export)
    message, hint = last_error_of(result)
    assert result.exit_code == CONNECTION_LOST
    assert message == "2 jobs at AI Hub still run after 0 min"
    assert hint == AGAIN
    account.open.set()
    until(lambda: all(job.target_model.model_id for job in account.of_kind("compile_job")))
    monkeypatch.setattr(service_module, "PACE", FAST)
    assert hexgraft(*export).exit_code == 0
    assert kinds(account) == ONCE


def test_what_the_service_has_lost_is_made_again(
    account: HubServer, export: tuple[str, ...], tmp_path: Path
) -> None:
    account.fail_jobs["^hexgraft target sm8650"] = "out of memory"
    assert hexgraft(*export).exit_code == 1
    account.fail_jobs.clear()
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
    account.fail_jobs["^hexgraft target sm8650"] = "out of memory"
    assert hexgraft(*export).exit_code == 1
    account.fail_jobs.clear()
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


def test_a_failed_job_is_not_taken_for_the_one_that_was_refused(
    account: HubServer, export: tuple[str, ...]
) -> None:
    """It has the same name; the answer to its second submission is a fault on the way."""
    account.fail_jobs["target_ar8"] = "the device went away"
    assert hexgraft(*export).exit_code == 1
    account.fail_jobs.clear()
    account.faults.append(Fault("POST /api/v1/jobs", 9, 503))
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    assert account.faults[0].times == 0
    assert kinds(account) == {"compile": 3, "link": 1, "upload": 2}


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
    account.fail_jobs["target_ar8"] = "the graph is cursed"
    assert hexgraft(*export).exit_code == 1
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
    account.fail_jobs["^hexgraft draft"] = "no"
    assert hexgraft(*place, "--via", "aihub", "--soc", "SM8650").exit_code == 1
    account.fail_jobs.clear()
    (tmp_path / ".b.unfinished" / BOOK).unlink()
    done = hexgraft(*place, "--via", "aihub", "--soc", "SM8650")
    assert done.exit_code == 0, done.stderr
    assert "the job book does not hold its jobs any more" in done.stderr
    assert kinds(account) == {"compile": 3, "link": 2, "upload": 3}
    bundle = open_bundle(tmp_path / "b")
    bundle.verify()
    records = read_records(bundle)
    assert records is not None
    assert [record.binary.split("/")[0] for record in records.binaries] == ["draft"]


def test_a_changed_model_is_another_upload(account: HubServer, tmp_path: Path) -> None:
    account.fail_jobs["^hexgraft target sm8650"] = "out of memory"
    for seed in (0, 0, 1):
        checkpoint = write_tiny_hf(tmp_path / "tiny", seed=seed)
        place = ("export", checkpoint, "-o", tmp_path / "b", "--widths", "1,8", "--context", "64")
        assert hexgraft(*place, "--via", "aihub", "--soc", "SM8650").exit_code == 1
    assert kinds(account) == {"compile": 4, "link": 3, "upload": 4}


def test_a_damaged_book_is_named(account: HubServer, export: tuple[str, ...], tmp_path: Path) -> None:
    account.fail_jobs["target_ar8"] = "no"
    assert hexgraft(*export).exit_code == 1
    (tmp_path / ".b.unfinished" / BOOK).write_text("{", encoding="utf-8")
    message, hint = error_of(hexgraft(*export))
    assert "is not a job book" in message
    assert "remove it" in hint
