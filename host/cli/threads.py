"""The option of every command that computes on this machine's processor."""

from __future__ import annotations

import click

threads_option = click.option(
    "--threads",
    default=0,
    show_default=True,
    type=click.IntRange(0, 256),
    help="CPU threads; 0 for one a core.",
)
