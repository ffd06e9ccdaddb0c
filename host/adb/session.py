"""Sessions on a phone: the bundle and the runner are there, and one runner serves target and draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hexgraft.host.adb.device_runner import DeviceRunner
from hexgraft.host.adb.errors import Unfit
from hexgraft.host.adb.facts import gather
from hexgraft.host.adb.phone import ROOT, Phone, open_phone
from hexgraft.host.adb.push import Progress, Pusher
from hexgraft.host.adb.release import Release, find_release
from hexgraft.host.adb.store import Folder, Piece
from hexgraft.host.bundle import Bundle
from hexgraft.host.manifest import MANIFEST
from hexgraft.host.runner_session import RunnerSession
from hexgraft.models.errors import UsageError

PROVIDERS = ("cpu", "htp")


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Which phone, which folder on it, what computes there, and whether its screen stays on meanwhile."""

    serial: str | None = None
    root: str = ROOT
    provider: str = "cpu"
    stay_awake: bool = True


class DevicePlace:
    """A phone with a bundle on it and a runner at work. Sessions of both roles share the runner.

    Everything missing is pushed first; `progress` is told of it, `note` of what the runner logs.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: DeviceOptions,
        *,
        progress: Progress = lambda what, done, total: None,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        if options.provider not in PROVIDERS:
            raise UsageError(f"unknown provider {options.provider!r}", f"one of: {', '.join(PROVIDERS)}")
        self.bundle = bundle
        self.options = options
        self._progress = progress
        self._note = note
        self.phone: Phone = open_phone(options.serial, options.root)
        self.release: Release = self._release()
        self._runner: DeviceRunner | None = None

    def _release(self) -> Release:
        facts = gather(self.phone)
        if self.options.provider == "htp" and facts.target.startswith("android") and not facts.nodes:
            raise Unfit(
                f"{self.phone.name} ({facts.soc or 'unknown chip'}) has no Hexagon NPU that adb may reach",
                "use --provider cpu",
            )
        return find_release(facts.target, qnn=self.options.provider == "htp")

    @property
    def runner(self) -> DeviceRunner:
        """The runner, started now if it does not run."""
        if self._runner is None:
            pusher = Pusher(self.phone, self._progress)
            for folder in (bundle_folder(self.bundle), self.release.folder):
                pusher.push(folder)
            self._runner = DeviceRunner(
                self.phone, self.release, stay_awake=self.options.stay_awake, note=self._note
            )
        return self._runner

    def session(
        self, role: str, *, widths: Sequence[int] | None = None, whole: bool = False, threads: int = 0
    ) -> RunnerSession:
        """A session of "target" or "draft"."""
        return RunnerSession(
            self.runner.connection,
            bundle_folder(self.bundle).name,
            role,
            provider=self.options.provider,
            widths=widths,
            whole=whole,
            threads=threads,
        )

    def close(self) -> None:
        """End the runner; the files stay for the next run."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


def bundle_folder(bundle: Bundle) -> Folder:
    """A bundle's files as a folder for the phone; the manifest is one of them."""
    manifest = bundle.file(MANIFEST)
    pieces = {
        name: Piece(bundle.file(name), entry.size, entry.sha256)
        for name, entry in bundle.manifest.files.items()
    }
    pieces[MANIFEST] = Piece(manifest, manifest.stat().st_size, bundle.digest)
    return Folder("bundles", bundle.digest, pieces)
