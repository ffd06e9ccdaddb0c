"""Runs one graph on the HTP emulator, in a process of its own: WRAPPER SOC FOLDER, in.npz to out.npz."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

from hexgraft.host.htp.qnn import qnn_options


def main(wrapper: str, soc_model: str, folder: str) -> None:
    session = ort.InferenceSession(wrapper, qnn_options({"soc_model": soc_model}, {}))
    with np.load(Path(folder) / "in.npz") as given:
        found = session.run(None, {name: given[name] for name in given.files})
    names = [value.name for value in session.get_outputs()]
    np.savez(Path(folder) / "out.npz", **dict(zip(names, found, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
