"""What goes wrong at AI Hub or on the way there, in words and exit codes; the same command goes on later."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from command import error_of, hexgraft, last_error_of
from hub_http import SIGNATURE, TOKEN
from hub_service import ONCE, Fault, HubServer, kinds
from qai_hub.util import session as client_session
from tiny import write_tiny_hf

from hexgraft.host.bundle import open_bundle
from hexgraft.host.hub import service as service_module
from hexgraft.host.hub.book import JobBook
from hexgraft.models.errors import CONNECTION_LOST

AGAIN = "run the same command again later: it takes up its jobs where they are, none is paid for twice"


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


# ----------------------------------------------------------------- jobs


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
