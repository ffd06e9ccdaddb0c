"""Click's own errors (a missing argument, an unknown option, a bad choice) in the form all others have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import click

from hexgraft.models.errors import look_at

_EXTRA = re.compile(r"got unexpected extra argument(s?) \((.*)\)", re.DOTALL)
_REFUSED = re.compile(r"\w+ (['\"])(.*)\1 is not readable", re.DOTALL)
_MISSING = re.compile(r"(\w+) (['\"])(.*)\2 does not exist", re.DOTALL)


def command_asked(group: click.Group, arguments: Sequence[str]) -> str:
    """The command that arguments begin with, as a user types it: "hexgraft device push"."""
    path, command, context = "hexgraft", group, click.Context(group)
    for word in arguments:
        found = command.get_command(context, word)
        if found is None:
            break
        path = f"{path} {word}"
        if not isinstance(found, click.Group):
            break
        command = found
    return path


def usage_words(error: click.ClickException, asked: str) -> tuple[str, str]:
    """Message and hint of an error of click's; `asked` is the command where the error names none itself, as
    those of click's parser do not."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else asked
    message, hint = _plain(error.format_message()), f"see `{command} --help`"
    if isinstance(error, click.MissingParameter):
        message = f"{command} needs {_name(error.param, error.param_hint)}"
        if context is not None and isinstance(error.param, click.Argument):
            hint = f"{_usage(context)}; {hint}"
    elif isinstance(error, click.BadOptionUsage):
        lacks = "requires" in error.message
        message = f"{command}: {error.option_name} {'needs a value' if lacks else 'takes no value'}"
    elif isinstance(error, click.BadParameter):
        name, said = _name(error.param, error.param_hint), _plain(error.message, lower=False)
        message = f"{name}: {said}"
        refused = _REFUSED.fullmatch(said)
        if refused is not None and error.param is not None and isinstance(error.param.type, click.Path):
            message, hint = f"{name}: {refused[2]} is not readable", look_at(Path(refused[2]))
        missing = _MISSING.fullmatch(said)
        if missing is not None and error.param is not None and isinstance(error.param.type, click.Path):
            message = f"{name}: there is no {missing[1].lower()} {missing[3]}"
            there = next((folder for folder in Path(missing[3]).parents if folder.is_dir()), Path())
            hint = f"check its name: ls {quote(str(there))}"
        if error.param is not None and isinstance(error.param.type, click.Choice):
            message = f"{name} {said.split(' is not one of ')[0]} is none of its choices"
            hint = f"one of: {', '.join(map(str, error.param.type.choices))}"
    elif (extra := _EXTRA.fullmatch(message)) is not None:
        message = f"unexpected argument{extra[1]} '{extra[2]}'"
        if context is not None:
            hint = f"{_usage(context)}; {hint}"
    elif isinstance(error, click.NoSuchOption):
        message = f"{command} has no option {error.option_name}"
        hint = _did_you_mean(list(error.possibilities or ()), hint)
    elif context is not None and isinstance(context.command, click.Group) and "No such command" in str(error):
        shown = _plain(error.message).removeprefix("no such command ")  # without newer click's guess
        asked = shown[1:-1]
        message = f"{command} has no command {shown}"
        hint = _did_you_mean(difflib.get_close_matches(asked, context.command.list_commands(context)), hint)
    return message, hint


def _plain(message: str, *, lower: bool = True) -> str:
    """A message as ours begin and end."""
    message = " ".join(message.split()).removesuffix(".")
    return message[:1].lower() + message[1:] if lower else message


def _name(parameter: click.Parameter | None, given: object) -> str:
    """What a user knows a parameter by: an argument's name, an option's longest."""
    if isinstance(parameter, click.Option):
        return max((*parameter.opts, *parameter.secondary_opts), key=len)
    return parameter.human_readable_name if parameter is not None else str(given)


def _usage(context: click.Context) -> str:
    pieces = context.command.collect_usage_pieces(context)
    return " ".join((context.command_path, *pieces))


def _did_you_mean(names: list[str], hint: str) -> str:
    return f"did you mean {' or '.join(names[:3])}? {hint}" if names else hint
