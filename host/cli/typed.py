"""Which options stand on the command line, for commands that would otherwise ignore one without a word."""

from __future__ import annotations

import click
from click.core import ParameterSource


def typed_options() -> dict[str, str]:
    """By the parameter's name, the long name of each option that was typed, in the order of `--help`. What
    stands in the environment is there for other runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    return {
        parameter.name or "": max(parameter.opts, key=len)
        for parameter in context.command.params
        if isinstance(parameter, click.Option)
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
