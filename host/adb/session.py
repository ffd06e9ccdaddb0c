"""Sessions on a phone: the bundle and the runner are put there, and one runner serves target and draft."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hexgraft.host.adb.device_runner import DeviceRunner
from hexgraft.host.adb.errors import DeviceError, Unfit
from hexgraft.host.adb.facts import PhoneFacts, free_space, gather
from hexgraft.host.adb.fit import Asked, Build, bundle_folder, check_release, choose_build, graphs_for
from hexgraft.host.adb.phone import ROOT, Phone, open_phone
from hexgraft.host.adb.push import Progress, Pushed, Pusher, megabytes
from hexgraft.host.adb.release import Release, find_release
from hexgraft.host.adb.store import Folder
from hexgraft.host.bundle import Bundle
from hexgraft.host.layout import last_widths
from hexgraft.host.runner.cache_file import CacheFile
from hexgraft.host.runner.connection import Operation
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.runner.wire import RunnerError
from hexgraft.models.errors import BundleError, UsageError

PROVIDERS = ("cpu", "htp")
SPACE_LEFT = 1 << 30
"""Bytes a cache file must leave free on a phone."""


def _nothing(*said: Any) -> None:
    """Where nobody wants to know."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Which phone, which folder on it, what computes there, and whether its screen stays on meanwhile.

    `asked` names one of several builds for the NPU. `progress` is told of files being pushed, `note` of every
    line the runner logs. `soc_model` gives the number by which QAIRT knows a phone's chip, where the caller
    has a table of chips.
    """

    serial: str | None = None
    root: str = ROOT
    provider: str = "cpu"
    stay_awake: bool = True
    asked: Asked = field(default_factory=Asked)
    progress: Progress = field(default=_nothing, compare=False)
    note: Callable[[str], None] = field(default=_nothing, compare=False)
    soc_model: Callable[[PhoneFacts], int | None] = field(default=_nothing, compare=False)

    @classmethod
    def from_environment(cls, provider: str = "cpu") -> DeviceOptions:
        """What ANDROID_SERIAL and HEXGRAFT_DEVICE_ROOT say."""
        return cls(
            os.environ.get("ANDROID_SERIAL") or None, os.environ.get("HEXGRAFT_DEVICE_ROOT") or ROOT, provider
        )


class DevicePlace:
    """A phone with a bundle on it and a runner at work. Sessions of both roles share the runner.

    Everything missing is pushed first.
    """

    def __init__(self, bundle: Bundle, options: DeviceOptions) -> None:
        if options.provider not in PROVIDERS:
            raise UsageError(f"unknown provider {options.provider!r}", f"one of: {', '.join(PROVIDERS)}")
        self.bundle = bundle
        self.options = options
        self.phone: Phone = open_phone(options.serial, options.root)
        facts = gather(self.phone)
        graphs = graphs_for(bundle, facts.target, options.provider)
        if graphs == "htp" and not facts.nodes:
            raise Unfit(
                f"{self.phone.name} ({facts.soc or 'unknown chip'}) has no Hexagon NPU that adb may reach",
                "use --provider cpu",
            )
        self.build: Build | None = choose_build(
            bundle, graphs, options.asked, facts, options.soc_model(facts)
        )
        """The build for the NPU that is used, None on the CPU."""
        arch = self.build.arch if self.build and graphs == "htp" else None
        self.release: Release = find_release(facts.target, qnn=options.provider == "htp", arch=arch)
        check_release(bundle, graphs, self.release.libraries)
        self.folder: Folder = bundle_folder(bundle, graphs, self.build)
        self._runner: DeviceRunner | None = None
        self.users = 0
        """Sessions that use the runner."""

    def push(self) -> Pushed:
        """Put on the phone what it lacks."""
        pusher = Pusher(self.phone, self.options.progress)
        pusher.push(self.folder)
        return pusher.push(self.release.folder)

    @property
    def alive(self) -> bool:
        """Whether the runner runs and can be asked, as far as is known without asking."""
        runner = self._runner
        return runner is not None and not (runner.stream.ended or runner.connection.broken)

    @property
    def runner(self) -> DeviceRunner:
        """The runner, started now if it does not run."""
        if self._runner is None:
            self.push()
            options = self.options
            self._runner = DeviceRunner(
                self.phone, self.release, stay_awake=options.stay_awake, note=options.note
            )
        return self._runner

    def close(self) -> None:
        """End the runner; the files stay for the next run."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


class DeviceSession(RunnerSession):
    """A model on a phone. Closing the last session of a place ends its runner."""

    def __init__(
        self,
        place: DevicePlace,
        role: str,
        *,
        widths: Sequence[int] | None = None,
        whole: bool = False,
        threads: int = 0,
    ) -> None:
        provider = place.options.provider
        self._runner = place.runner
        try:
            super().__init__(
                self._runner.connection,
                place.folder.name,
                role,
                provider=provider,
                widths=widths,
                whole=whole,
                threads=threads,
                soc=place.build.soc if place.build else None,
                precision=place.build.precision if place.build else None,
                last_logits=last_widths(place.bundle.model(role), provider),
            )
        except (BundleError, RunnerError) as error:
            raise self._runner.decoded(error) from error
        self.spec = replace(self.spec, provider="device" if provider == "cpu" else f"device-{provider}")
        self._place: DevicePlace | None = place
        self.build: Build | None = place.build
        """The build for the NPU that runs, None on the CPU."""
        self._identity = (
            *(place.bundle.digest, role, provider, place.build, place.release.folder.digest),
            *(self.spec.widths, whole, threads),
        )
        place.users += 1

    def cache_file(self, complain: Callable[[str], None] = _nothing) -> CacheFile:
        """The phone's file of this session's committed slots, for a run that may have to go on after a lost
        link. Not to be used where a full one would leave the phone too little space; `complain` is told."""
        file = CacheFile(self, self._identity, complain)
        spec, phone = self.spec, self._runner.phone
        most = spec.capacity * spec.layers * spec.kv_heads * spec.head_dim * 2 * 4
        free = free_space(phone)
        if free is not None and free - most < SPACE_LEFT:
            file.usable = False
            complain(f"{phone.name} has {megabytes(free)} free; a cache file may take {megabytes(most)}")
        return file

    @property
    def serial(self) -> str:
        """The phone's."""
        return self._runner.phone.serial

    def send(self, operations: list[Operation], optional: int = 0) -> list[dict[str, Any]]:
        """As a runner's session; what the vendor's libraries failed with is told in words."""
        try:
            return super().send(operations, optional)
        except (BundleError, RunnerError) as error:
            raise self._runner.decoded(error) from error

    def close(self) -> None:
        place, self._place = self._place, None
        if place is None:
            return
        with contextlib.suppress(DeviceError):  # a phone that is gone has nothing left to unload
            super().close()
        place.users -= 1
        if place.users == 0:
            place.close()


_places: dict[tuple[str, DeviceOptions], DevicePlace] = {}


def open_device_session(
    bundle: Bundle,
    role: str,
    options: DeviceOptions | None = None,
    *,
    widths: Sequence[int] | None = None,
    whole: bool = False,
    threads: int = 0,
) -> DeviceSession:
    """A session on a phone. Another one of the same bundle and options shares its runner, since a phone runs
    one at a time; whatever is still open when this process exits is ended then."""
    options = options or DeviceOptions.from_environment()
    key = (bundle.digest, options)
    place = _places.get(key)
    if place is None or not place.alive:
        place = _places[key] = DevicePlace(bundle, options)
    return DeviceSession(place, role, widths=widths, whole=whole, threads=threads)


@atexit.register
def close_places() -> None:
    """End every runner this process started on phones."""
    while _places:
        _, place = _places.popitem()
        place.close()
