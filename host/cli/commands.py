"""The list of commands, in the order the help shows them."""

from __future__ import annotations

import click

from hexgraft.host.cli.bake import bake
from hexgraft.host.cli.chat import chat
from hexgraft.host.cli.clean import clean
from hexgraft.host.cli.compare import compare
from hexgraft.host.cli.demo import demo
from hexgraft.host.cli.device import device
from hexgraft.host.cli.devices import devices
from hexgraft.host.cli.doctor import doctor
from hexgraft.host.cli.export import export
from hexgraft.host.cli.fetch import fetch
from hexgraft.host.cli.inspect import inspect
from hexgraft.host.cli.lab import lab
from hexgraft.host.cli.models import models
from hexgraft.host.cli.push import push
from hexgraft.host.cli.replay import replay
from hexgraft.host.cli.run import run
from hexgraft.host.cli.tree import tree

COMMANDS: tuple[click.Command, ...] = (
    demo,
    fetch,
    models,
    export,
    inspect,
    run,
    tree,
    compare,
    replay,
    chat,
    bake,
    lab,
    push,
    devices,
    doctor,
    clean,
    device,
)
