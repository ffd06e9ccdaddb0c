"""What click finds wrong with a command line is said as all else is: a sentence, a hint, exit 2."""

from __future__ import annotations

import click
import pytest
from command import error_of, hexgraft

from hexgraft.host.cli.main import cli


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("run", "hexgraft run needs BUNDLE", "hexgraft run [OPTIONS] BUNDLE [-]; see `hexgraft run --help`"),
        ("train-draft x", "hexgraft train-draft needs --output", "see `hexgraft train-draft --help`"),
        ("models --draft x", "--draft goes with a CHECKPOINT", "name its target too: "),
        ("bench b --plto x", "hexgraft bench has no option --plto", "did you mean --plot"),
        ("device lopback", "hexgraft device has no command 'lopback'", "did you mean loopback? see "),
        ("frob", "hexgraft has no command 'frob'", "see `hexgraft --help`"),
        ("device lo'pback", 'hexgraft device has no command "lo\'pback"', "did you mean loopback? see "),
        (
            "run b - d",
            "unexpected argument 'd'",
            "hexgraft run [OPTIONS] BUNDLE [-]; see `hexgraft run --help`",
        ),
        ("compare a b c", "unexpected argument 'c'", "hexgraft compare [OPTIONS] A|BUNDLE [B]; see "),
        ("compare a b c d", "unexpected arguments 'c d'", "hexgraft compare [OPTIONS] A|BUNDLE [B]; see "),
        ("run b -p", "hexgraft run: -p needs a value", "see `hexgraft run --help`"),
        ("run b --json=3", "hexgraft run: --json takes no value", "see `hexgraft run --help`"),
        (
            "device build --preset",
            "hexgraft device build: --preset needs a value",
            "see `hexgraft device build ",
        ),
        ("--version=3", "hexgraft: --version takes no value", "see `hexgraft --help`"),
        ("replay t b --backend z", "--backend 'z' is none of its choices", "one of: cpu, htp-sim, runner, "),
        (
            "export m --calibration no/such",
            "--calibration: there is no file no/such",
            "check its name: ls .",
        ),
        ("device sdk --headers nowhere", "--headers: there is no path nowhere", "check its name: ls ."),
        ("bench b --cool-to nan", "--cool-to: 'nan' is not a number", "see `hexgraft bench --help`"),
    ],
)
def test_click_s_errors_have_our_form(words: str, message: str, hint: str) -> None:
    done = hexgraft(*words.split())
    assert done.exit_code == 2
    found = error_of(done)
    assert found[0] == message
    assert found[1].startswith(hint)


def commands(command: click.Command, words: list[str]) -> list[tuple[list[str], click.Command]]:
    """Every command below one, with the words it is called by."""
    if not isinstance(command, click.Group):
        return [(words, command)]
    context = click.Context(command)
    named = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [found for name, each in named if each is not None for found in commands(each, [*words, name])]


def test_every_command_refuses_an_unknown_option_in_that_form() -> None:
    for words, command in commands(cli, []):
        if command.context_settings.get("ignore_unknown_options"):
            continue  # those of a program that it starts
        done = hexgraft(*words, "--no-such-thing")
        assert done.exit_code == 2
        assert error_of(done)[0] == f"hexgraft {' '.join(words)} has no option --no-such-thing"


def test_a_group_alone_shows_its_help() -> None:
    done = hexgraft("device")
    assert (done.stdout + done.stderr).startswith("Usage: hexgraft device ")
