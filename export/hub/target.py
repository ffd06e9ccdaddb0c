"""Which hosted device stands for a chip, and which QAIRT release it compiles with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hexgraft.export.htp.soc import Soc, soc_table
from hexgraft.host.hub.book import JobEntry
from hexgraft.host.hub.service import HostedDevice
from hexgraft.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class HubTarget:
    """Where the jobs of an export run: a device for each chip (by its name), and the QAIRT release, None for
    AI Hub's own choice."""

    devices: dict[str, HostedDevice]
    qairt: str | None


def soc_of(device: HostedDevice) -> Soc | None:
    """Our entry of a device's chip; None if it names none that we know."""
    number = device.soc_model
    chips = {value.lower() for value in device.values("chipset")}
    for soc in soc_table():
        if soc.soc_model == number or (number is None and chips & {chip.lower() for chip in soc.chips}):
            return soc
    return None


def find_device(devices: Sequence[HostedDevice], name: str) -> HostedDevice:
    """The device of this name, the one with the newest system if there are several.

    Raises UsageError with the closest names.
    """
    same = [device for device in devices if device.name.lower() == name.lower()]
    if same:
        return max(same, key=lambda device: _version(device.os))
    close = difflib.get_close_matches(name, [device.name for device in devices], n=3, cutoff=0.4)
    raise UsageError(
        f"AI Hub has no device {name!r}",
        f"closest: {', '.join(dict.fromkeys(close))}" if close else "hexgraft hub devices lists them",
    )


def device_for(devices: Sequence[HostedDevice], soc: Soc) -> HostedDevice:
    """A device with this chip: the same one every time, so that jobs are found again. Proxies, which stand
    for a chip without being there, come last: they compile but run nothing."""
    same = [device for device in devices if soc_of(device) == soc]
    if not same:
        raise UsageError(
            f"AI Hub has no device with {soc.title}", "hexgraft hub devices lists them and their chips"
        )
    return min(same, key=lambda device: ("proxy" in device.name.lower(), device.name, device.os))


def devices_for(devices: Sequence[HostedDevice], name: str | None, soc: Soc | None) -> list[HostedDevice]:
    """The devices that may do what is asked of one with this name, or with this chip."""
    return [
        device
        for device in devices
        if (name is None or device.name.lower() == name.lower()) and (soc is None or soc_of(device) == soc)
    ]


def device_again(
    chosen: HostedDevice,
    devices: Sequence[HostedDevice],
    jobs: Iterable[JobEntry],
    say: Callable[[str], None],
) -> HostedDevice:
    """The one of `devices` that did the last of some jobs, else the `chosen` one. Jobs go by their device:
    on another, which AI Hub lists since, they would be paid for again."""
    for entry in reversed(list(jobs)):
        same = [d for d in devices if d.name == entry.device and entry.os in ("", d.os)]
        if same:
            again = chosen if chosen in same else min(same, key=lambda device: device.os)
            if again != chosen:
                say(f"taking {again.title}, which has jobs of an earlier run, and not {chosen.title}")
            return again
    return chosen


def find_targets(
    devices: Sequence[HostedDevice], name: str | None, socs: Sequence[Soc]
) -> tuple[tuple[Soc, ...], dict[str, HostedDevice]]:
    """The chips to compile for and a device for each: that of `name`, or one for each of `socs`."""
    if name is None:
        return tuple(socs), {soc.name: device_for(devices, soc) for soc in socs}
    device = find_device(devices, name)
    soc = soc_of(device)
    if soc is None:
        raise UsageError(
            f"{device.name} has a chip that is not in our table", "name its chip with --soc instead"
        )
    if socs and tuple(socs) != (soc,):
        raise UsageError(
            f"{device.name} has {soc.title}, not {', '.join(other.title for other in socs)}",
            "leave out --soc or --device",
        )
    return (soc,), {soc.name: device}


def choose_release(
    offered: Sequence[tuple[str, bool]], wanted: str | None, here: str | None
) -> tuple[str | None, str]:
    """The release to ask for (None for the service's own), and which it will be in words.

    `wanted` is the user's, `here` that of the installed onnxruntime-qnn, whose libraries go to phones.
    """
    names = [release for release, _ in offered]
    if wanted is not None:
        short = short_version(wanted)
        if offered and short not in names:
            raise UsageError(f"AI Hub does not offer QAIRT {wanted}", f"it offers {', '.join(names)}")
        return short, short
    if here is not None and (not names or short_version(here) in names):
        return short_version(here), short_version(here)
    default = next((release for release, chosen in offered if chosen), None)
    return None, default or "of its own choice"


def short_version(release: str) -> str:
    """ "2.51" of "2.51.0"."""
    return ".".join(release.lstrip("v").split(".")[:2])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
