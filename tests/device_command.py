"""`hexgraft` as the tests of phones run it: in this process, or as one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from hexgraft.host.adb.session import close_places
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli import main as cli


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Hexgraft:
    """The command, in this process; stdin is empty."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str) -> Result:
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as raised:
            cli.main(list(words))
        out, err = self._capfd.readouterr()
        code = raised.value.code
        assert isinstance(code, int)
        close_places()
        return Result(code, out, err)


@pytest.fixture
def hexgraft(
    capfd: pytest.CaptureFixture[str], built_runner: None, monkeypatch: pytest.MonkeyPatch
) -> Hexgraft:
    monkeypatch.setenv("COLUMNS", "120")
    return Hexgraft(capfd)


def run_words(bundle: Bundle, prompt: str, *more: str, tokens: int = 24) -> list[str]:
    return ["run", str(bundle.path), "-p", prompt, "--raw", "--max-tokens", str(tokens), "--json", *more]


def command(*words: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | kwargs
    return subprocess.Popen([sys.executable, "-m", "hexgraft.host.cli", *words], **pipes)
