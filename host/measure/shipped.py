"""Profiles that come with hexgraft, made of published figures; and any other by its file's name."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from hexgraft.host.measure.profile import LatencyProfile, parse_profile, read_profile
from hexgraft.models.errors import UsageError

_FOLDER = files("hexgraft.host.measure") / "profiles"


def shipped_profiles() -> list[str]:
    """Their names."""
    names = (file.name for file in _FOLDER.iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def find_profile(name: str) -> LatencyProfile:
    """The profile of a file, or one of ours by its name; raises UsageError or ProfileError."""
    if name in shipped_profiles():
        return parse_profile((_FOLDER / f"{name}.json").read_bytes(), name)
    if Path(name).suffix == "" and not Path(name).exists():
        raise UsageError(
            f"no profile is called {name}",
            f"a file of `hexgraft bench -o`, or {', '.join(shipped_profiles())}",
        )
    return read_profile(Path(name))
