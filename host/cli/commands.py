"""The list of commands, in the order the help shows them."""

from __future__ import annotations

import click

from hexgraft.host.cli.bake import bake
from hexgraft.host.cli.chat import chat
from hexgraft.host.cli.demo import demo
from hexgraft.host.cli.export import export
from hexgraft.host.cli.fetch import fetch
from hexgraft.host.cli.inspect import inspect
from hexgraft.host.cli.lab import lab
from hexgraft.host.cli.run import run

COMMANDS: tuple[click.Command, ...] = (demo, fetch, export, inspect, run, chat, bake, lab)
