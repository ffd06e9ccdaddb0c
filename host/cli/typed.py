"""Which options stand on the command line, for commands that would otherwise ignore one without a word."""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource


def typed_option(only: Collection[str] | None = None, *, but: Collection[str] = ()) -> str | None:
    """The long name of the first option that was typed, of those with the parameter names `only` or of all
    `but` some; None if none was. What stands in the environment is there for other runs."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if not isinstance(parameter, click.Option) or name in but or (only is not None and name not in only):
            continue
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return max(parameter.opts, key=len)
    return None
