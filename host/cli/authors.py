"""`--sampling`: greedy, or as a model's authors recommend where no option says otherwise."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import say
from hexgraft.models.errors import UsageError

GREEDY, AUTHORS = "greedy", "authors"
_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")

authors_option = click.option(
    "--sampling",
    "manner",
    type=click.Choice((GREEDY, AUTHORS)),
    default=GREEDY,
    show_default=True,
    help="authors: temperature, top-k and so on as the model's authors recommend, where not given here.",
)


def take_authors(bundle: Bundle, options: dict[str, Any]) -> None:
    """With `--sampling authors`, put the bundle's recommendation into the sampling options that were not
    given. Raises UsageError if it has none."""
    if options.pop("manner", GREEDY) != AUTHORS:
        return
    known = bundle.manifest.tokenizer.generation
    if not known:
        raise UsageError(
            f"{bundle.path} does not say how the model's authors sample",
            "leave out --sampling authors, or give --temperature and the others yourself",
        )
    context = click.get_current_context(silent=True)
    taken = []
    for name in _NAMES:
        given = context is not None and context.get_parameter_source(name) not in (
            None,
            ParameterSource.DEFAULT,
        )
        if name in known and not given:
            options[name] = int(known[name]) if name == "top_k" else known[name]
            taken.append(f"{name.replace('_', '-')} {options[name]:g}")
    if taken:
        say(f"sampling as the authors say: {', '.join(taken)}")
