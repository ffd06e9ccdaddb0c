"""The folder a training works in: a plan that says what it is for, waves, a bundle of the target, the
checkpoint."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec
import torch

from hexgraft.export.train.generate import Plan, wave_path
from hexgraft.host.atomic_file import cannot_write, write_whole
from hexgraft.host.counted import counted
from hexgraft.models.errors import UsageError

PLAN = "plan.json"
CHECKPOINT = "checkpoint.pt"
WAVES = "waves"
_NAMES = {
    "target": "the target's graph",
    "weights": "the target's weights file",
    "seed": "--seed",
    "features": "what a draft reads (--kind)",
    "texts": "--texts",
    "new_tokens": "--new-tokens",
    "prompt_tokens": "the room for prompts",
    "extra": "--prompts",
}


class Work:
    """A work folder for one target and one plan. Opening it with another plan is refused.

    `target` and `weights` are the sha256 of the target's graph and of its weights' file.
    """

    def __init__(self, path: Path, target: str, plan: Plan, weights: str) -> None:
        self.path, self.plan = path, plan
        try:
            (path / WAVES).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(path, error) from error
        facts = {"target": target, "weights": weights, **asdict(plan)}
        wanted = msgspec.json.format(msgspec.json.encode(facts), indent=1)
        file = path / PLAN
        if not file.is_file():
            write_whole(file, wanted, replace=True)
        elif differ := _differences(file.read_bytes(), wanted):
            raise UsageError(
                f"{path} holds text of another training: {differ}",
                f"name another folder with --work, or remove it: rm -r {quote(str(path))}",
            )

    @property
    def waves(self) -> Path:
        """Where the waves lie."""
        return self.path / WAVES

    def begun(self, tokens: int | None) -> int | None:
        """How many waves a stopped training was begun on, which was asked for so many tokens."""
        text = self._state().get("text", {})
        return text.get("waves") if text.get("tokens", 0) == tokens else None

    def files(self, count: int) -> list[Path]:
        """The first `count` waves; UsageError names the first that is missing."""
        files = [wave_path(self.waves, number) for number in range(count)]
        for file in files:
            if not file.is_file():
                raise UsageError(
                    f"{file} is missing: {count} waves are wanted",
                    "run the shard that makes it, or copy it here",
                )
        return files

    def save(self, state: dict[str, Any]) -> None:
        """Keep a training's state in place of the one before; HexgraftError when the disk is full."""
        file = self.path / CHECKPOINT
        partial = file.with_suffix(f".{os.getpid()}")
        try:
            torch.save(state, partial)
            partial.replace(file)
        except OSError as error:
            raise cannot_write(file, error) from error
        except RuntimeError as error:  # what torch's own writer raises when the disk is full
            raise cannot_write(file, OSError(28, os.strerror(28))) from error
        finally:
            with suppress(OSError):
                partial.unlink()

    def load(self, options: dict[str, Any]) -> dict[str, Any] | None:
        """The state kept of a training, if there is any; UsageError if it was begun with other `options`, for
        the draft it has made so far would be lost."""
        state = self._state()
        if not state:
            return None
        kept = state.get("options", {})
        differ = [
            f"`{name}` is {kept.get(name)} there and {options.get(name)} here"
            for name in (options | kept)
            if kept.get(name) != options.get(name)
        ]
        if differ:
            file = self.path / CHECKPOINT
            raise UsageError(
                f"{file} is of a training that was begun otherwise: {'; '.join(differ)}",
                f"go on as it was begun, name another -o and --work, or begin anew: rm {quote(str(file))}",
            )
        return state

    def _state(self) -> dict[str, Any]:
        file = self.path / CHECKPOINT
        if not file.is_file():
            return {}
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
        except Exception as error:  # torch raises whatever its reader stumbles over
            raise UsageError(
                f"{file} is damaged", f"rm {quote(str(file))} and start the training again"
            ) from error
        return state

    def forget(self) -> None:
        """Remove the state of a training that has ended."""
        (self.path / CHECKPOINT).unlink(missing_ok=True)


def _differences(there: bytes, here: bytes) -> str:
    """What two plans do not agree about, with what each says; nothing where they do. Plans of old do not say
    what weights they are for."""
    wanted = msgspec.json.decode(here, type=dict[str, Any])
    try:
        found = msgspec.json.decode(there, type=dict[str, Any])
    except msgspec.DecodeError:
        return f"its {PLAN} cannot be read"
    found.setdefault("weights", wanted["weights"])
    differ = [name for name in wanted if found.get(name) != wanted[name]]
    parts = [
        f"{_NAMES[name]} is {_shown(found.get(name))} there and {_shown(wanted[name])} here"
        for name in differ
    ]
    return "; ".join(parts) or (f"its {PLAN} says more than this one" if found != wanted else "")


def _shown(value: object) -> str:
    """A value of a plan in a few words; of prompts their number and what tells them apart."""
    if isinstance(value, str):
        return value[:12]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return (
            f"{counted(len(value), 'prompt')} ({hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:6]})"
        )
    if isinstance(value, list):
        return f"layers {', '.join(map(str, value))}" if value else "nothing"
    return "unknown" if value is None else str(value)
