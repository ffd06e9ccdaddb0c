"""The work of the AI Hub stand-in: its jobs, done for real with onnxruntime-qnn.

It has no converter, so its "DLC" is the uploaded graph with the options it was compiled with. Linking
compiles these graphs into one context binary, inference runs one of them on the emulator.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
from qai_hub import api_utils
from qai_hub import public_api_pb2 as pb
from qai_hub.util.dataset_entries_converters import dataset_entries_to_h5, h5_to_dataset_entries

from hexgraft.export.htp.compile import Compiled, compile_binary
from hexgraft.export.htp.soc import soc_table


class Broken(Exception):
    """Why a job failed, in the service's words."""


@dataclass
class Facts:
    inputs: Any
    outputs: Any
    qairt: str


@dataclass
class _Linked:
    """A binary and what the emulator needs to run one of its graphs by itself."""

    graphs: dict[str, Path]
    soc_model: int


@dataclass
class Workshop:
    """Files by the id of their model or data set, in `root`. `spoil` puts an operator into every graph that
    the NPU does not have, `distort` has inference give nonsense."""

    root: Path
    release: str = "2.51"
    spoil: bool = False
    distort: bool = False
    results: dict[str, Any] = field(default_factory=dict)
    linked: dict[str, _Linked] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)
    wrappers: list[Path] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def file(self, name: str) -> Path:
        return self.root / name

    def part(self, name: str, number: int, content: bytes) -> str:
        etag = hashlib.md5(content).hexdigest()
        self.file(f"{name}.{etag}").write_bytes(content)
        return etag

    def join(self, name: str, etags: list[str]) -> None:
        parts = [self.file(f"{name}.{etag}") for etag in etags]
        self.file(name).write_bytes(b"".join(part.read_bytes() for part in parts))

    # ------------------------------------------------------------- jobs

    def compile(self, source: str, target: str, text: str) -> None:
        """Check an uploaded model as the service would, and keep it under `target`."""
        options = parse(text)
        if options.get("target_runtime") != "qnn_dlc":
            raise Broken(f"target runtime {options.get('target_runtime')} is not supported")
        folder = self.file(f"{target}.dlc")
        with zipfile.ZipFile(self.file(source)) as archive:
            names = archive.namelist()
            tops = {name.split("/")[0] for name in names}
            inside = {name.split("/", 1)[1] for name in names}
            if len(tops) != 1 or not next(iter(tops)).endswith(".onnx"):
                raise Broken(f"the archive holds {sorted(tops)}, expected one folder NAME.onnx")
            if "model.onnx" not in inside or not inside <= {"model.onnx", "model.data"}:
                raise Broken(f"the folder holds {sorted(inside)}")
            archive.extractall(folder)
        (model,) = folder.glob("*/model.onnx")
        onnx.checker.check_model(str(model))
        proto = onnx.load(model, load_external_data=False)
        for value in (*proto.graph.input, *proto.graph.output):
            if not all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim):
                raise Broken(f"{value.name} has a dynamic shape")
            if not value.name.isidentifier():
                raise Broken(f"{value.name} is no name for a tensor")
        given = [name for name in options.get("output_names", "").split(",") if name]
        names = given or [f"output_{number}" for number in range(len(proto.graph.output))]
        for value, name in zip(proto.graph.output, names, strict=True):
            rename(proto, value.name, name)
        if self.spoil:
            proto.graph.node.append(onnx.helper.make_node("Acosh", [names[0]], ["spoilt"], "spoil"))
            proto.graph.output.append(proto.graph.output[0])
            proto.graph.output[-1].name = "spoilt"
        onnx.save(proto, model)
        graph = options["qnn_options"]["context_enable_graphs"]
        self.file(target).write_text(json.dumps({"graph": graph, "model": str(model)}), encoding="utf-8")
        self.compiled.append(graph)

    def link(self, sources: list[str], target: str, text: str, soc_model: int) -> Facts:
        """Compile graphs into one binary. The compiler chooses the names inside, so those are told."""
        parse(text)
        dlcs = [json.loads(self.file(source).read_text(encoding="utf-8")) for source in sources]
        models = {dlc["graph"]: Path(dlc["model"]) for dlc in dlcs}
        folder = self.file(f"{target}.link")
        folder.mkdir()
        compiled = self._compile(models, folder, "linked", soc_model)
        self.file(target).write_bytes(compiled.binary.read_bytes())
        inside = [graph.graph for graph in compiled.graphs]
        self.linked[target] = _Linked(dict(zip(inside, models.values(), strict=True)), soc_model)
        inputs, outputs = pb.NamedTensorTypeList(), pb.NamedTensorTypeList()
        for name, wrapper in zip(inside, compiled.wrappers, strict=True):
            proto = onnx.load(wrapper, load_external_data=False)
            for values, told in ((proto.graph.input, inputs), (proto.graph.output, outputs)):
                told.types.extend(_tensor(value, name) for value in values)
        return Facts(inputs, outputs, compiled.graphs[0].qairt)

    def infer(self, model: str, inputs: str, outputs: str, text: str) -> list[int]:
        """Run one graph of a binary on the emulator; made-up times in microseconds, longer for more rows."""
        chosen = parse(text)["qnn_options"]["context_enable_graphs"]
        with h5py.File(self.file(inputs)) as stored:
            given = {name: arrays[0] for name, arrays in h5_to_dataset_entries(stored).items()}
        folder = self.file(f"{outputs}.run")
        folder.mkdir()
        wrapper, soc_model = self._alone(model, chosen, folder)
        np.savez(folder / "in.npz", **given)
        command = [sys.executable, str(Path(__file__).with_name("hub_emulator.py"))]
        command += [str(wrapper), str(soc_model), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Broken(done.stderr.strip().splitlines()[-1] if done.stderr else "the runtime crashed")
        with np.load(folder / "out.npz") as found, h5py.File(self.file(outputs), "w") as stored:
            sign = -1 if self.distort else 1
            dataset_entries_to_h5({name: [sign * found[name]] for name in found.files}, stored)
        rows = next(iter(given.values())).shape[1]
        return [1000 + 10 * rows + step for step in (2, 1, 3, 0, 4)]

    def _alone(self, model: str, graph: str, folder: Path) -> tuple[Path, int]:
        """A wrapper of one graph that the emulator can load, and its chip. What was linked is compiled once
        more by itself; an uploaded binary is taken as it is, its wrapper from `wrappers`."""
        linked = self.linked.get(model)
        if linked is None:
            content = self.file(model).read_bytes()
            if graph.encode() not in content:
                raise Broken(f"the context binary has no graph {graph}")
            (wrapper,) = (path for path in self.wrappers if graph.encode() in path.read_bytes())
            proto = onnx.load(wrapper, load_external_data=False)
            (name,) = (item.s for item in proto.graph.node[0].attribute if item.name == "ep_cache_context")
            (folder / name.decode()).write_bytes(content)
            (folder / "single.onnx").write_bytes(wrapper.read_bytes())
            return folder / "single.onnx", 57
        if graph not in linked.graphs:
            raise Broken(f"the context binary has no graph {graph}")
        compiled = self._compile({"single": linked.graphs[graph]}, folder, "single", linked.soc_model)
        return compiled.wrappers[0], linked.soc_model

    def _compile(self, models: dict[str, Path], folder: Path, name: str, soc_model: int) -> Compiled:
        soc = next(soc for soc in soc_table() if soc.soc_model == soc_model)
        with self.lock:
            return compile_binary(models, folder, name, soc)


def parse(text: str) -> dict[str, Any]:
    """The command-line like options of a job; --qnn_options as a mapping of its own."""
    words = text.split()
    options: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        options[flag.removeprefix("--")] = value
    settings = options.get("qnn_options", "")
    options["qnn_options"] = dict(item.split("=", 1) for item in settings.split(";") if item)
    return options


def rename(proto: onnx.ModelProto, old: str, new: str) -> None:
    """Give a value of a graph another name."""
    for value in (*proto.graph.output, *proto.graph.value_info):
        value.name = new if value.name == old else value.name
    for node in proto.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = new if name == old else name


def _tensor(value: Any, graph: str) -> Any:
    kind = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    shape = [dim.dim_value for dim in kind.shape.dim]
    told = pb.TensorType(shape=shape, dtype=api_utils.get_type_value_from_str(dtype))
    return pb.NamedTensorType(name=value.name, tensor_type=told, graph_name=graph)
