"""What lies in a QNN context binary: its graphs, their inputs and outputs, as libQnnSystem reads them.

The vendor's library parses the file in a process of its own: `python -m hexgraft.export.foreign.binary FILE`
prints what it finds as JSON.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from ctypes import CDLL, POINTER, byref, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hexgraft.export.foreign import structures as qnn
from hexgraft.export.foreign.source import SourceGraph, Tensor
from hexgraft.host.htp.qnn import MODULE, short_release
from hexgraft.host.manifest import Encoding
from hexgraft.models.errors import ExportError

_TYPES = {
    0x0008: "int8",
    0x0016: "int16",
    0x0032: "int32",
    0x0108: "uint8",
    0x0116: "uint16",
    0x0216: "float16",
    0x0232: "float32",
    0x0308: "int8",
    0x0316: "int16",
    0x0408: "uint8",
    0x0416: "uint16",
}
_QUANTISED = (0x0308, 0x0316, 0x0408, 0x0416)


@dataclass(frozen=True, slots=True)
class Binary:
    """A context binary: the QAIRT release that made it, the number of the chip it is for (0 where it does not
    say), its graphs."""

    file: Path
    qairt: str
    soc_model: int
    graphs: tuple[SourceGraph, ...]


def read_binary(file: Path) -> Binary:
    """Read a binary through libQnnSystem. Raises ExportError where the library is missing or refuses it."""
    if importlib.util.find_spec(MODULE) is None:
        raise ExportError(
            f"reading {file.name} needs libQnnSystem, which comes with onnxruntime-qnn",
            "pip install 'hexgraft[htp]' on an x86-64 Linux machine",
        )
    done = subprocess.run(
        [sys.executable, "-m", "hexgraft.export.foreign.binary", str(file)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else "its library crashed"
        raise ExportError(
            f"{file} is not a context binary that QAIRT here reads: {reason}",
            "is the download complete, and is onnxruntime-qnn not older than the binary?",
        )
    found = json.loads(lines[-1])
    graphs = tuple(
        SourceGraph(graph["name"], file, _tensors(graph["inputs"]), _tensors(graph["outputs"]))
        for graph in found["graphs"]
    )
    return Binary(file, short_release(found["build"]), found["soc_model"], graphs)


def _tensors(found: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {
        tensor["name"]: Tensor(
            tensor["dtype"],
            tuple(tensor["shape"]),
            Encoding(tensor["dtype"], tensor["scale"], tensor["zero"]) if "scale" in tensor else None,
        )
        for tensor in found
    }


def describe(library: Path, file: Path) -> dict[str, Any]:
    """The binary's graphs in plain values. Loads the vendor's library into this process."""
    functions, handle = _open(library)
    data = file.read_bytes()
    buffer = ctypes.create_string_buffer(data, len(data))
    info, size = POINTER(qnn.BinaryInfo)(), c_uint64(0)
    call = ctypes.CFUNCTYPE(c_uint64, c_void_p, c_void_p, c_uint64, c_void_p, c_void_p)(
        functions.get_binary_info
    )
    code = call(handle, ctypes.addressof(buffer), len(data), ctypes.addressof(info), ctypes.addressof(size))
    if code != 0:
        raise ValueError(f"QnnSystemContext_getBinaryInfo gives error {code}")
    version = info.contents.version
    if version not in (1, 2, 3):
        raise ValueError(f"its description is of version {version}")
    body = info.contents.bodies.v3 if version == 3 else info.contents.bodies.v2
    return {
        "build": (body.build or b"").decode(),
        "soc_model": body.soc_model if version == 3 else 0,
        "graphs": [_graph(body.graphs[i].body) for i in range(body.graphs_count)],
    }


def _open(library: Path) -> tuple[qnn.Functions, c_void_p]:
    """The table of functions, and a handle to read binaries with."""
    providers, count = POINTER(POINTER(qnn.Interface))(), c_uint32(0)
    code = CDLL(str(library)).QnnSystemInterface_getProviders(byref(providers), byref(count))
    if code != 0 or count.value == 0:
        raise ValueError(f"QnnSystemInterface_getProviders gives error {code}")
    functions: qnn.Functions = providers[0].contents.functions
    handle = c_void_p()
    code = ctypes.CFUNCTYPE(c_uint64, c_void_p)(functions.create)(ctypes.addressof(handle))
    if code != 0:
        raise ValueError(f"QnnSystemContext_create gives error {code}")
    return functions, handle


def _graph(graph: qnn.GraphV3) -> dict[str, Any]:
    return {
        "name": graph.name.decode(),
        "inputs": [_tensor(graph.inputs[i]) for i in range(graph.inputs_count)],
        "outputs": [_tensor(graph.outputs[i]) for i in range(graph.outputs_count)],
    }


def _tensor(tensor: qnn.Tensor) -> dict[str, Any]:
    body = tensor.body
    name = body.name.decode()
    if tensor.version not in (1, 2) or body.dtype not in _TYPES:
        raise ValueError(f"{name} has a type that is not known ({body.dtype:#x})")
    found = {
        "name": name,
        "dtype": _TYPES[body.dtype],
        "shape": [body.dimensions[i] for i in range(body.rank)],
    }
    if body.dtype in _QUANTISED:
        quantisation = body.quantisation
        if quantisation.defined != qnn.DEFINED or quantisation.encoding != qnn.SCALE_OFFSET:
            raise ValueError(f"{name} has another quantisation than one scale and offset")
        pair = quantisation.params.scale_offset
        found |= {"scale": pair.scale, "zero": -pair.offset}
    return found


def main() -> None:
    import onnxruntime_qnn

    library = Path(onnxruntime_qnn.get_library_path()).parent / "libQnnSystem.so"
    try:
        print(json.dumps(describe(library, Path(sys.argv[1]))))
    except (ValueError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
