"""JSON files of checkpoints, read within a size limit, and typed fields out of them with errors in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hexgraft.models.errors import CheckpointError, DamagedError, look_at

JSON_LIMIT = 64 << 20


def read_text(path: Path, limit: int = JSON_LIMIT) -> str:
    """The UTF-8 text of a file of at most `limit` bytes; raises CheckpointError for anything else."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        shown = path if path.parent != Path() else path.absolute()  # "config.json" alone says not where
        raise CheckpointError(f"{shown} is missing", "download the complete model folder") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", look_at(path)) from error
    if len(data) > limit:
        raise DamagedError(f"{path} is bigger than {limit >> 20} MB, which no such file should be")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path} is not UTF-8 text (byte {error.start})") from error


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """The object a JSON file holds; raises CheckpointError for anything else."""
    try:
        value = json.loads(read_text(path, limit))
    except (json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}", "download it again") from error
    if not isinstance(value, dict):
        raise DamagedError(f"{path} holds a {type(value).__name__} where a JSON object is expected")
    return value


class Fields:
    """Typed access to a mapping of settings; `where` names the file in errors."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of 1 to 2**31; null and missing give the default, or an error without one."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
            raise DamagedError(f"{self.where}: {key} is {_shown(value)}, not a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; null and missing give the default, or an error without one."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise DamagedError(f"{self.where}: {key} is {_shown(value)}, not a positive number")
        return float(value)

    def maybe_number(self, key: str) -> float | None:
        """As `number`, None where the key is missing or null."""
        return None if self.values.get(key) is None else self.number(key)

    def maybe_integer(self, key: str) -> int | None:
        """As `integer`, None where the key is missing or null."""
        return None if self.values.get(key) is None else self.integer(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false; null and missing give the default."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise DamagedError(f"{self.where}: {key} is {_shown(value)}, not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; null and missing give the default, or an error without one."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise DamagedError(f"{self.where}: {key} is {_shown(value)}, not a string")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise DamagedError(f"{self.where} has no {key}")
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
