"""Loads one ONNX graph on ONNX Runtime's CPU provider, as the C++ runner does."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime as ort

from hexgraft.models.errors import BundleError, look_at
from hexgraft.models.file_names import is_utf8


def load_cpu_graph(file: Path, threads: int, hint: str) -> ort.InferenceSession:
    """A runtime session of `file` with `threads`, 0 for one a core; raises BundleError with `hint`, in one
    line, where the runtime refuses it."""
    if not is_utf8(str(file)):
        raise BundleError(
            f"ONNX Runtime cannot open {file}, whose path is not UTF-8", "rename what of it is not, with `mv`"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Between passes the cores belong to the host and to the other model: threads that spun on after a head's
    # many short passes made the target's next one twice as long.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises types of its own that share no base class but this one
        # The graph, or the weights beside it: to make them again would not help.
        for each in (file, *sorted(file.parent.iterdir())):
            if each.exists() and not os.access(each, os.R_OK):
                raise BundleError(f"{each} is not readable", look_at(each)) from error
        reason = str(error).strip().splitlines()[0]
        raise BundleError(f"ONNX Runtime {ort.__version__} cannot load {file}: {reason}", hint) from error
