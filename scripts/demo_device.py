"""The whole path to a phone, on one that is not there: export, push, run, trace, compare with the CPU.

Run it with a phone as the only one: `hexgraft device loopback -- python scripts/demo_device.py`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from hexgraft.host.bundle import open_bundle
from hexgraft.models.errors import BundleError
from hexgraft.models.user_folders import cache_folder

PROMPT = "List the planets of the solar system, then list them again in reverse order."
TOKENS = "64"


def show(*words: str) -> None:
    """Print a command as one would type it, and run it; a failing one ends the demonstration."""
    print(f"\n$ {shlex.join(('hexgraft', *words))}", flush=True)
    done = subprocess.run([sys.executable, "-m", "hexgraft.host.cli", *words])
    if done.returncode != 0:
        sys.exit(done.returncode)


def bundle(scratch: Path) -> Path:
    """The bundle of `hexgraft demo` if it is there and whole, else one made in `scratch`."""
    path = cache_folder() / "bundles" / "smollm2-135m-instruct"
    try:
        open_bundle(path)
        return path
    except BundleError:
        fetch = [sys.executable, "-m", "hexgraft.host.cli", "fetch"]
        checkpoint = subprocess.run(fetch, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        show("export", checkpoint, "-o", str(scratch / "smollm2"))
        return scratch / "smollm2"


def main() -> None:
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        place = str(bundle(scratch))
        traces = {backend: str(scratch / f"{backend}.trace") for backend in ("device", "cpu")}
        show("devices")
        show("push", place)
        show("push", place)
        show("doctor", "--backend", "device")
        for backend, trace in traces.items():
            run = ("run", place, "-p", PROMPT, "--max-tokens", TOKENS, "--backend", backend)
            show(*run, "--trace", trace)
        show("compare", *traces.values())
        show("clean")


if __name__ == "__main__":
    main()
