"""The folder a loopback device lives in: its file system as far as hexgraft looks at it, and its commands.

Paths of the phone are mapped into it, in sync requests and inside shell commands alike. It is no jail:
commands run as the user who started the device.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from hexgraft.host.loopback.commands import COMMANDS, LIMITED
from hexgraft.host.loopback.phone import PhoneModel

_ROOTS = r"/(?:data|sys|vendor|system|sdcard|dsp)(?![\w.-])"
_FILES = r"/proc/(?:meminfo|cpuinfo|sys/kernel/random/boot_id)|/dev/(?:fastrpc|adsprpc)[\w*-]*"
_MAPPED = re.compile(rf"(?<![\w./*-])(?:{_ROOTS}|{_FILES})")


class Sandbox:
    """One device's folder. `shell` runs its commands: the system's, or an Android-like one. With `toybox`,
    Android's multi-call binary, its applets are all the commands there are; the partition has no limit then.
    """

    def __init__(
        self, folder: Path, model: PhoneModel, shell: str = "/bin/sh", toybox: Path | None = None
    ) -> None:
        self.folder = folder.resolve()
        self.shell = shell
        self._toybox = toybox
        (self.folder / "data" / "local" / "tmp").mkdir(parents=True, exist_ok=True)
        for name in ("bin", "settings", "dumpsys", "dev"):
            (self.folder / name).mkdir(exist_ok=True)
        for name, text in COMMANDS.items():
            file = self.folder / "bin" / name
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755)
        if toybox is not None:
            self._link(toybox)
        model.write(self.folder)
        self.boot()

    def _link(self, toybox: Path) -> None:
        """Put toybox's applets, and the shell, in place of the machine's commands."""
        done = subprocess.run([str(toybox)], capture_output=True, text=True, check=True)
        for name in LIMITED:
            (self.folder / "bin" / name).unlink()
        for name, target in [(applet, str(toybox)) for applet in done.stdout.split()] + [("sh", self.shell)]:
            link = self.folder / "bin" / name
            if not link.exists():
                link.symlink_to(target)

    def boot(self) -> None:
        """A new boot: another boot id, nothing else of the files changes."""
        file = self.path("/proc/sys/kernel/random/boot_id")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{time.time_ns():032x}\n", encoding="ascii")

    def path(self, name: str) -> Path:
        """Where a path of the phone lies here. `..` does not lead out."""
        return self.folder / os.path.normpath("/" + name).lstrip("/")

    def command(self, text: str) -> str:
        """A shell command with the phone's paths replaced."""
        return _MAPPED.sub(lambda match: f"{self.folder}{match[0]}", text)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": str(self.folder / "bin") + ("" if self._toybox else ":/usr/local/bin:/usr/bin:/bin"),
            "HOME": str(self.folder),
            "SANDBOX": str(self.folder),
            "TMPDIR": str(self.folder / "data" / "local" / "tmp"),
            "LANG": "C.UTF-8",
        }

    def limit_space(self, total: int | None) -> None:
        """Tell the commands how large the data partition is."""
        file = self.folder / "space"
        if total is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(str(total), encoding="ascii")

    def used(self) -> int:
        """Bytes of all files on the data partition."""
        return sum(file.stat().st_size for file in (self.folder / "data").rglob("*") if file.is_file())

    def forbid_exec(self, on: bool) -> None:
        """Put a chmod that does nothing in front of the real one, as a FAT volume behaves."""
        file = self.folder / "bin" / "chmod"
        if on:
            file.write_text("#!/bin/sh\nexit 0\n", encoding="ascii")
            file.chmod(0o755)
        else:
            file.unlink(missing_ok=True)

    def processes(self) -> list[int]:
        """Every process this device started that still runs, whatever session it is in."""
        mark = f"SANDBOX={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # gone meanwhile, or somebody else's
        return found

    def kill_all(self) -> None:
        """Kill everything that runs on the device, until nothing does."""
        for _ in range(100):
            running = self.processes()
            if not running:
                return
            for pid in running:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
