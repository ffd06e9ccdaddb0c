"""ONNX Runtime's QNN provider: whether it is here, of which QAIRT release, and how its sessions are set
up."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Mapping
from typing import Any

from hexgraft.models.errors import UsageError

PROVIDER = "QNNExecutionProvider"
MODULE = "onnxruntime_qnn"


def require_qnn(what: str) -> None:
    """Raise UsageError if the provider is not installed; `what` is the user's wish that needs it."""
    if importlib.util.find_spec(MODULE) is not None:
        return
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UsageError(
            f"{what} needs onnxruntime-qnn, which exists for x86-64 Linux only",
            "run it on an x86-64 Linux machine; everything else works here",
        )
    raise UsageError(f"{what} needs onnxruntime-qnn, which is not installed", "pip install 'hexgraft[htp]'")


def qairt_version() -> str:
    """The QAIRT release of the installed provider: "2.51.0"."""
    from onnxruntime_qnn import build_and_package_info

    return str(build_and_package_info.qnn_version)


def short_release(sdk_version: str) -> str:
    """ "2.51.0" of "v2.51.0.260929181845", as wrappers name the release that built their binary."""
    found = re.match(r"v?(\d+\.\d+\.\d+)", sdk_version)
    return found[1] if found else sdk_version


def qnn_options(options: Mapping[str, str], entries: Mapping[str, str]) -> Any:
    """Session options for the HTP backend with `options` of the provider and `entries` of the session.

    No node may fall back to the CPU: a graph that silently runs elsewhere would prove nothing.
    """
    import onnxruntime as ort
    import onnxruntime_qnn

    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
        devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    session = ort.SessionOptions()
    session.log_severity_level = 3
    for key, value in {"session.disable_cpu_ep_fallback": "1", **entries}.items():
        session.add_session_config_entry(key, value)
    defaults = {
        "backend_type": "htp",
        "htp_graph_finalization_optimization_mode": "3",
        # Quantising at the graph's border belongs to the NPU too: the other way is a CPU node.
        "offload_graph_io_quantization": "0",
    }
    session.add_provider_for_devices(devices[:1], {**defaults, **options})
    return session
