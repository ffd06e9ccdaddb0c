"""The `hexgraft` command: one group, one place where errors become words and exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

import click

from hexgraft.host.cli.commands import Commands
from hexgraft.host.cli.console import say_error
from hexgraft.host.cli.usage import command_asked, usage_words
from hexgraft.models.errors import FAILED, INTERRUPTED, HexgraftError

_HELP = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer versions of click raise where a group alone shows its help."""
_HINTS = {
    errno.ENOSPC: "free some space: `df -h` shows where",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
    errno.EACCES: "see `ls -ld` on it and on its folder",
    errno.EEXIST: "there is something of that name already, see `ls -ld`: choose another name",
    errno.ENOTDIR: "a part of the path is a file, see `ls -ld`: choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hexgraft", prog_name="hexgraft")
def cli() -> None:
    """Export language models to static graphs with tree-mask inputs and decode with token trees.

    The same graphs, the same slots, the same tokens: on this machine's CPU, on the Hexagon NPU's emulator
    and on a phone. Start with `hexgraft demo`; `hexgraft COMMAND --help` tells what a command takes.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 failed, 2 usage, 3 connection lost, 4 no device, 130
    interrupted."""
    _open_streams()
    try:
        result: Any = cli.main(args=arguments, prog_name="hexgraft", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.ClickException as error:
        if isinstance(error, _HELP):
            error.show()
        else:
            words = sys.argv[1:] if arguments is None else arguments
            say_error(*usage_words(error, command_asked(cli, words)))
        code = error.exit_code
    except HexgraftError as error:
        say_error(error.message, error.hint, error.details)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        say_error("interrupted", None)
        code = INTERRUPTED
    except OSError as error:
        # With a broken pipe the reader of our output went away; there is nobody left to tell.
        if not isinstance(error, BrokenPipeError):
            where = error.filename or "the output"
            say_error(f"the system refuses {where}: {error.strerror or error}", _HINTS.get(error.errno or 0))
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    sys.exit(code)


def _open_streams() -> None:
    """Have all three streams, so that no file takes the number of one that was closed; paths are written as
    the file system has them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
