"""A virtual environment for each peer, made when it is first asked for and kept in the cache."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hexgraft.models.user_folders import cache_folder

INSTALL_SECONDS = 1800
"""llama-cpp-python has no wheels: it is compiled, ten minutes on two cores."""


class Missing(Exception):
    """Why a peer cannot be compared here."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages of the registry, and the module that shows they are there; `shared` ones may be those of the
    environment that runs this."""

    name: str
    packages: tuple[str, ...]
    module: str
    shared: bool = False

    @property
    def folder(self) -> Path:
        return cache_folder() / "peers" / self.name

    def python(self) -> Path:
        """An interpreter that has the packages; raises Missing."""
        if self.shared and _imports(Path(sys.executable), self.module):
            return Path(sys.executable)
        python = self.folder / "bin" / "python"
        if python.exists() and _imports(python, self.module):
            return python
        print(f"{self.name}: installing {', '.join(self.packages)} into {self.folder}", file=sys.stderr)
        _run([sys.executable, "-m", "venv", str(self.folder)], 120)
        _run([str(python), "-m", "pip", "install", "-q", *self.packages], INSTALL_SECONDS)
        if not _imports(python, self.module):
            raise Missing(f"{', '.join(self.packages)} installed, but {self.module} cannot be imported")
        return python

    def site(self) -> Path:
        """Where its packages lie; raises Missing."""
        self.python()
        return next((self.folder / "lib").glob("python3*/site-packages"))


HEXGRAFT = Environment("hexgraft", (), "hexgraft.host", shared=True)
TRANSFORMERS = Environment("transformers", ("torch", "transformers"), "transformers, torch", shared=True)
GENAI = Environment("onnxruntime-genai", ("onnxruntime-genai", "onnx-ir"), "onnxruntime_genai, onnx_ir")
OPENVINO = Environment("openvino", ("openvino-genai",), "openvino_genai")
LLAMA = Environment("llama.cpp", ("llama-cpp-python",), "llama_cpp")


def _imports(python: Path, module: str) -> bool:
    command = [str(python), "-c", f"import {module}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: list[str], seconds: int) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(command[-2:])} took more than {seconds} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Missing(f"{' '.join(command[-2:])}: {lines[-1]}")
