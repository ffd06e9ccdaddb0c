"""Commands are loaded by name, each alone, and Ctrl-C while one is loaded ends the process without words."""

from __future__ import annotations

import signal
import subprocess
import sys
from keyword import iskeyword

import click
import pytest
from command import hexgraft

from hexgraft.host.cli.commands import COMMANDS
from hexgraft.host.cli.main import cli


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_file_of_its_name(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.callback is not None
    # `import.py` could be no module of that name.
    file = f"{name}_bundle" if iskeyword(name) else name.replace("-", "_")
    assert command.callback.__module__ == f"hexgraft.host.cli.{file}"


def test_the_help_tells_each_in_a_whole_sentence() -> None:
    lines = hexgraft("--help").stdout.split("Bundles:\n")[1].splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(name for name, _ in rows) == list(COMMANDS)
    assert not [line for line in lines if line.endswith("...")]
    assert {line[13:15] for line in lines if line.strip() and line.startswith("  ")} == {"  "}


def test_unknown_commands_are_none() -> None:
    assert cli.get_command(click.Context(cli), "main") is None


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_a_run_loads_nothing_that_only_exports_need() -> None:
    done = python(
        "import sys; from hexgraft.host.cli.main import cli\n"
        "cli.main(['run', '--help'], standalone_mode=False)\n"
        "print('onnx' in sys.modules, 'gguf' in sys.modules, 'hexgraft.export.writer' in sys.modules)"
    )
    assert done.stdout.splitlines()[-1] == "False False False", done.stderr


@pytest.mark.parametrize("where", ["commands.import_module = lambda name: os.kill(os.getpid(), 2)", ""])
def test_ctrl_c_while_a_command_is_loaded(where: str) -> None:
    done = python(
        "import os; from hexgraft.host.cli import commands\n"
        f"from hexgraft.host.cli.main import main\n{where}\n"
        "main(['fetch', '--help'])"
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (-signal.SIGINT if where else 0)
    assert done.stderr == ""


def test_interrupts_raise_again_once_a_command_is_loaded() -> None:
    before = signal.getsignal(signal.SIGINT)
    cli.get_command(click.Context(cli), "fetch")
    assert signal.getsignal(signal.SIGINT) is before
