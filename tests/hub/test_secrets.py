"""What must not get out: the token anywhere, and these tests to the network."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from command import error_of, hexgraft
from hub_http import SIGNATURE, TOKEN
from hub_service import Fault, HubServer

from hexgraft.host.hub.errors import HubError, redact


def test_the_token_is_nowhere(
    account: HubServer, export: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in what is said, in logs at their most talkative, nor in any file that is left."""
    caplog.set_level(logging.DEBUG)
    said = ""
    echo = f'{{"detail": "token {TOKEN} is bad, {account.address("x")}"}}'
    for fault in (
        Fault("PUT", 40, 403, echo),
        Fault("POST .*jobs", 1, 400, echo),
        Fault("download", 99, lose=True),
    ):
        account.faults[:] = [fault]
        result = hexgraft(*export, "--json")
        assert result.exit_code
        said += result.output
    account.faults.clear()
    done = hexgraft(*export)
    assert done.exit_code == 0, done.stderr
    said += done.output + caplog.text
    assert "Uploading asset to" in said
    for secret in (TOKEN, SIGNATURE):
        assert secret not in said
        for file in tmp_path.rglob("*"):
            inside = file.is_file() and file.name != "client.ini" and "stand-in" not in file.parts
            assert not (inside and secret.encode() in file.read_bytes()), file


def test_a_configuration_that_is_none_quotes_nothing(
    account: HubServer, export: tuple[str, ...], tmp_path: Path
) -> None:
    for text in (f"api_token = {TOKEN}\n", "[api]\napi_url = x\n", f"[api]\n{TOKEN}\n"):
        (tmp_path / "client.ini").write_text(text, encoding="utf-8")
        result = hexgraft(*export)
        message, hint = error_of(result)
        assert message == f"{tmp_path / 'client.ini'} is not a configuration of AI Hub's client"
        assert "qai-hub configure" in hint
        assert TOKEN not in result.output
    (tmp_path / "client.ini").write_text("[api]\napi_url=x\nweb_url=x\napi_token=\n", encoding="utf-8")
    assert "there is no AI Hub token in" in error_of(hexgraft(*export))[0]


def test_redacting() -> None:
    assert redact(f"a {TOKEN} b", TOKEN) == "a [token] b"
    assert redact("see https://x.y/z?X-Amz-Signature=1&b=2 now", "") == "see https://x.y/z now"
    assert redact('"PUT /a/b?X-Signature=12 HTTP/1.1"', "") == '"PUT /a/b?[signed] HTTP/1.1"'
    assert redact("why?", "") == "why?"


def test_errors_have_no_past(account: HubServer, export: tuple[str, ...]) -> None:
    """Nothing of the client's is chained to ours, where a traceback would show it."""
    from hexgraft.host.hub.service import open_service

    account.faults.append(Fault("devices", 1, 403, TOKEN))
    with pytest.raises(HubError) as caught:
        open_service().devices()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


# ----------------------------------------------------------------- the guard


def test_the_guard_lets_nothing_out(nothing_leaves: list[str]) -> None:
    import socket

    for attempt in (
        lambda: socket.create_connection(("192.0.2.1", 443), 0.1),
        lambda: socket.create_connection(("workbench.example", 443), 0.1),
        lambda: socket.socket().connect(("192.0.2.1", 443)),
    ):
        with pytest.raises(Exception, match=r"192\.0\.2\.1|workbench"):
            attempt()
    assert nothing_leaves == ["192.0.2.1", "workbench.example", "('192.0.2.1', 443)"]
    nothing_leaves.clear()
