"""Places that run graphs, by the name users choose them with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hexgraft.host.adb.fit import Asked
from hexgraft.host.adb.session import DeviceOptions, open_device_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.foreign.session import open_vendor_cpu, open_vendor_emulator
from hexgraft.host.htp.session import HtpSession
from hexgraft.host.layout import is_vendor
from hexgraft.host.runner.session import open_local_session
from hexgraft.host.session import Session
from hexgraft.models.errors import UsageError

BACKENDS = ("cpu", "htp-sim", "runner", "device")


def parse_width_option(option: str | None, bundle: Bundle, name: str = "--widths") -> tuple[int, ...] | None:
    """`--widths`, or what else an option of its kind is called: None for any width, "bundle" for those the
    bundle declares, or numbers: "8,32"."""
    if option is None:
        return None
    if option == "bundle":
        return tuple(bundle.target.widths)
    try:
        widths = tuple(sorted({int(part) for part in option.split(",")}))
    except ValueError:
        widths = ()
    if not widths or widths[0] < 1 or widths[-1] > 1024:
        raise UsageError(
            f"{name} {option!r} is neither `bundle` nor numbers from 1 to 1024", f"example: {name} 8,32"
        )
    return widths


def check_provider(backend: str, provider: str, name: str = "--backend") -> None:
    """Raise UsageError for a provider that a backend, chosen with the option `name`, does not have."""
    if backend == "cpu" and provider != "cpu":
        raise UsageError(f"{name} cpu has no provider {provider}", f"add {name} runner or {name} device")


def open_session(
    bundle: Bundle,
    role: str,
    backend: str,
    *,
    widths: Sequence[int] | None = None,
    whole: bool = False,
    threads: int = 0,
    provider: str = "cpu",
    soc: str | None = None,
    precision: str | None = None,
    phone: DeviceOptions | None = None,
) -> Session:
    """A session of the bundle's "target" or "draft"; `whole` allocates the whole context at once, as phones
    do. `provider` is what a runner computes with; `soc` and `precision` choose among several builds for the
    NPU. `phone` says which one "device" is, if the environment does not."""
    if (soc or precision) and backend != "htp-sim" and provider != "htp":
        raise UsageError(
            f"--{'soc' if soc else 'precision'} chooses a build for the NPU",
            "add --backend htp-sim, or --provider htp with --backend runner or device",
        )
    if backend == "cpu":
        check_provider(backend, provider)
        if is_vendor(bundle.model(role)):
            return open_vendor_cpu(bundle, role, widths=widths, threads=threads)
        return CpuSession(bundle, role, widths=widths, whole=whole, threads=threads)
    if backend == "htp-sim":
        if is_vendor(bundle.model(role)):
            return open_vendor_emulator(bundle, role, widths=widths)
        return HtpSession(bundle, role, widths=widths, soc=soc, precision=precision)
    if backend == "runner":
        return open_local_session(
            bundle,
            role,
            provider=provider,
            widths=widths,
            whole=whole,
            threads=threads,
            soc=soc,
            precision=precision,
        )
    if backend == "device":
        phone = replace(phone or DeviceOptions.from_environment(provider), asked=Asked(soc, precision))
        return open_device_session(bundle, role, phone, widths=widths, whole=whole, threads=threads)
    raise UsageError(f"unknown backend {backend!r}", f"one of: {', '.join(BACKENDS)}")
