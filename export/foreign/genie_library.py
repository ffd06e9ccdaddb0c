"""Has libGenie, where it is, check a config: in a process of its own, as it may end the one it is in.

`python -m hexgraft.export.foreign.genie_library LIBRARY CONFIG` does the check.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

from hexgraft.export.foreign.genie_config import CONFIG
from hexgraft.host.htp.qnn import MODULE
from hexgraft.models.errors import ExportError

_SDKS = ("QAIRT_SDK_ROOT", "QNN_SDK_ROOT")
_INSIDE = "lib/x86_64-linux-clang/libGenie.so"
_NOT_LOADED = 3
"""How the checking process ends where there is no library to ask."""


def find_genie() -> Path | None:
    """libGenie.so by $HEXGRAFT_GENIE, of a QAIRT SDK ($QAIRT_SDK_ROOT, $QNN_SDK_ROOT) or of onnxruntime-qnn;
    None where there is none. Raises ExportError if $HEXGRAFT_GENIE names no file."""
    named = os.environ.get("HEXGRAFT_GENIE")
    if named:
        if not Path(named).is_file():
            raise ExportError(f"HEXGRAFT_GENIE names {named}, which is no file", "name libGenie.so itself")
        return Path(named)
    here = sys.platform == "linux" and platform.machine() == "x86_64"
    places = [Path(os.environ[name]) / _INSIDE for name in _SDKS if here and os.environ.get(name)]
    spec = importlib.util.find_spec(MODULE)
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "libGenie.so")
    return next((place for place in places if place.is_file()), None)


def check_config(library: Path, folder: Path) -> None:
    """Raise ExportError with the library's own words unless it accepts the folder's config, or if it is of
    another machine."""
    paths = os.pathsep.join(filter(None, (str(library.parent), os.environ.get("LD_LIBRARY_PATH"))))
    command = [sys.executable, "-m", "hexgraft.export.foreign.genie_library", str(library.resolve()), CONFIG]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": paths},
    )
    if done.returncode == 0:
        return
    said = (done.stderr or done.stdout).decode(errors="replace").split()
    if done.returncode == _NOT_LOADED:
        raise ExportError(
            f"{library} cannot be loaded on this machine: {' '.join(said)[:600]}",
            "let HEXGRAFT_GENIE name the one for it, or unset what names this one: "
            f"{', '.join(('HEXGRAFT_GENIE', *_SDKS))}",
        )
    raise ExportError(
        f"libGenie refuses the config: {' '.join(said)[:600] or f'it ended with {done.returncode}'}",
        "report it, with the release of QAIRT that libGenie is of",
    )


def main() -> None:
    library, config = Path(sys.argv[1]), Path(sys.argv[2])
    handle = ctypes.c_void_p()
    try:
        create = ctypes.CDLL(str(library)).GenieDialogConfig_createFromJson
    except (OSError, AttributeError) as error:
        print(error, file=sys.stderr)
        sys.exit(_NOT_LOADED)
    sys.exit(0 if create(config.read_bytes(), ctypes.byref(handle)) == 0 else 1)


if __name__ == "__main__":
    main()
