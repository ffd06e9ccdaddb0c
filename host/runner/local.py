"""The runner of this machine as a child process, and where its parts are found."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from hexgraft.host.runner.connection import RunnerConnection
from hexgraft.host.runner.wire import RunnerError
from hexgraft.models.errors import UsageError

RUNNER = "hexgraft-runner"
BUILD_HINT = "build it with `hexgraft device build`"
_STDERR_LINES = 20


class LocalRunner:
    """The runner of this machine as a child process, with its connection.

    `ort` and `qnn` are libraries, found in the installed Python packages unless given; `command` goes before
    the binary (an emulator and its options), `options` after it. Ends with `close`, and by itself when this
    process ends.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        ort: Path | None = None,
        qnn: Path | None = None,
        command: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        words = [*command, str(binary or find_runner()), "--ort", str(ort or find_ort())]
        if qnn := qnn or find_qnn():
            words += ["--qnn", str(qnn)]
        words += options
        pipe = subprocess.PIPE
        try:
            # A session of its own: Ctrl-C is the host's to handle, the runner ends with the stream.
            self.process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise RunnerError(f"{words[0]} cannot be started: {error.strerror}", BUILD_HINT) from error
        self._input = _open(self.process.stdin)
        self._output = _open(self.process.stdout)
        self._tail: deque[str] = deque(maxlen=_STDERR_LINES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.connection = RunnerConnection(self._output, self._input, self._explain)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        self.connection.close()
        self._end()

    @property
    def stderr(self) -> str:
        """The last lines the runner and its libraries logged."""
        return "\n".join(self._tail)

    def _listen(self) -> None:
        with _open(self.process.stderr) as lines:
            for line in lines:
                self._tail.append(line.decode("utf-8", "replace").rstrip())

    def _explain(self) -> str:
        """How the process ended and the last thing it said."""
        try:
            code = self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return ""
        self._listener.join(timeout=1)
        how = f"exit status {code}" if code >= 0 else f"killed by {_signal_name(-code)}"
        if -code == signal.SIGKILL:
            how += ", likely out of memory"
        said = [line for line in self._tail if line.strip()]
        return how + (f"; it said: {said[-1]}" if said else "")

    def _end(self) -> None:
        """Close the stream, which ends the runner; kill one that does not listen."""
        with contextlib.suppress(OSError):  # it may be gone already
            self._input.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(timeout=1)
        self._output.close()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RunnerError("the runner was started without pipes")
    return stream


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def source_folder() -> Path:
    """The source tree's `device/`; raises UsageError where hexgraft was installed without its sources."""
    import hexgraft.host

    for place in hexgraft.host.__path__:
        folder = Path(place).resolve().parent / "device"
        if (folder / "CMakePresets.json").is_file():
            return folder
    raise UsageError(
        "the runner's sources are not beside this installation of hexgraft",
        "work from a checkout: `pip install -e .`",
    )


def find_runner() -> Path:
    """HEXGRAFT_RUNNER, or what `hexgraft device build` made for this machine."""
    if named := os.environ.get("HEXGRAFT_RUNNER"):
        return Path(named)
    preset = f"linux-{platform.machine()}"
    binary = source_folder().parent / "build" / "device" / preset / RUNNER
    if not binary.is_file():
        raise UsageError(f"there is no runner for this machine at {binary}", BUILD_HINT)
    return binary


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def find_ort() -> Path:
    """The ONNX Runtime library inside the installed `onnxruntime` package."""
    package = _package("onnxruntime")
    libraries = sorted((package / "capi").glob("libonnxruntime.so*")) if package else []
    if not libraries:
        raise UsageError("the onnxruntime package has no libonnxruntime.so", "pip install onnxruntime")
    return libraries[-1]


def find_qnn() -> Path | None:
    """The QNN provider plugin inside the installed `onnxruntime-qnn` package, None without one."""
    package = _package("onnxruntime_qnn")
    library = package / "libonnxruntime_providers_qnn.so" if package else None
    return library if library is not None and library.is_file() else None
