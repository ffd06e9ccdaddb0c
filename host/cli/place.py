"""Where a command runs: the phone its options mean, and the place that choices and prefixes are kept for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hexgraft.host.adb.fit import Asked
from hexgraft.host.adb.session import DeviceOptions, DevicePlace, DeviceSession
from hexgraft.host.backends import parse_width_option
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.phone_options import soc_model
from hexgraft.host.prefix import Place, Prefix, builds_for, read_prefix
from hexgraft.host.session import Session


def phone_of(options: dict[str, Any]) -> DeviceOptions:
    """The phone, by the options of `session_options`."""
    return DeviceOptions(
        options["serial"],
        options["root"],
        options["provider"],
        stay_awake=not options["no_stay_awake"],
        asked=Asked(options["soc"], options["precision"]),
        soc_model=soc_model,
    )


def place_of(bundle: Bundle, options: dict[str, Any], session: Session | None = None) -> Place:
    """Where the target's cache is computed, by the options of `session_options`. Which of several builds a
    phone runs is for the phone to say, where no open `session` of it knows."""
    backend, provider = options["backend"], options["provider"]
    widths, soc, precision = options["widths"], options["soc"], options["precision"]
    if widths not in (None, "bundle"):
        widths = ",".join(map(str, parse_width_option(widths, bundle) or ()))
    if backend == "device" and provider == "htp":
        build = session.build if isinstance(session, DeviceSession) else None
        if build is None and len(builds_for(bundle, backend, provider, soc, precision)) > 1:
            build = DevicePlace(bundle, phone_of(options)).build
        if build is not None:
            soc, precision = build.soc, build.precision
    return Place.of(bundle, backend, widths, provider, precision, options["threads"], soc)


def open_baked(bundle: Bundle, options: dict[str, Any]) -> Prefix | None:
    """The prefix of `baked_option`, checked against the bundle and where it runs."""
    path: Path | None = options["baked"]
    return None if path is None else read_prefix(path, bundle, place_of(bundle, options))
