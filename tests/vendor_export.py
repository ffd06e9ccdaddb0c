"""Folders as Qualcomm AI Hub's tools export them, made of a tiny bundle: CL columns, parts, quantised K/V.

The reference beside it is the bundle's own graph with the very same roundings, in hexgraft's layout.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from pair import write_pair

from hexgraft.export.foreign.importer import ImportOptions, import_bundle
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.parts import split
from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import causal, prefill

COLUMNS = 160
WIDTHS = (1, 8, 16, 32)
SIDECARS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Code:
    """An encoding: real = (stored - zero) * scale."""

    dtype: str
    scale: float
    zero: int


@dataclass
class VendorExport:
    """A folder of the vendor's, the tiny bundle it was made of, and the encodings by tensor name."""

    folder: Path
    bundle: Bundle
    codes: dict[str, Code]
    widths: Sequence[int]
    columns: int
    last: Sequence[int] = field(default=())

    def reference(self, **arguments: object) -> CpuSession:
        """Hexgraft's own layout with the same roundings: the symbolic graph, any width and capacity."""
        network = Network(self.bundle, "target")
        proto = _rounded(network.proto, self.codes, integers=False)
        file = network.folder / "rounded.onnx"
        onnx.save(proto, file)
        runtime = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        return CpuSession(self.bundle, runtime=runtime, **arguments)  # type: ignore[arg-type]


def write_vendor_export(
    folder: Path,
    *,
    widths: Sequence[int] = WIDTHS,
    columns: int = COLUMNS,
    cuts: Sequence[str] = ("embedded", "layers.1.out"),
    border: bool = False,
    quantised: bool = True,
    last: Sequence[int] = (),
    name: str = "prompt_ar{width}_cl{columns}_{part}_of_{parts}",
    **sizes: int,
) -> VendorExport:
    """Export a tiny model the vendor's way. `quantised` stores K/V in uint8; `border` quantises mask, RoPE
    tables and logits too, to uint16. Widths in `last` give the logits of their last row alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = write_pair(folder / "own", noise=None, options=ExportOptions((1, 8, 16, 32), columns - 1), **sizes)
    bundle = open_bundle(path)
    codes = (_kv_codes(bundle) if quantised else {}) | (_border_codes(bundle) if border else {})
    out = folder / "export"
    out.mkdir()
    for width in widths:
        write_width(bundle, out, width, columns, cuts, codes, name, width in last)
    for file in SIDECARS:
        shutil.copy(folder / "own" / "target-checkpoint" / file, out / file)
    return VendorExport(out, bundle, codes, widths, columns, last)


def write_width(
    bundle: Bundle,
    out: Path,
    width: int,
    columns: int,
    cuts: Sequence[str],
    codes: Mapping[str, Code],
    name: str,
    last: bool,
) -> None:
    """The parts of one width, weights inside each file, as ONNX files in `out`."""
    network = Network(bundle, "target")
    network.model.context = columns - width
    whole = onnx.load(network.file)
    network.initializers = {tensor.name: tensor for tensor in whole.graph.initializer}
    network.proto = whole
    proto = _rounded(network.static(width), codes, integers=True)
    if last:
        _last_row(proto, width)
    parts = split(proto, list(cuts), network.model.hidden, width)
    for number, part in enumerate(parts):
        stem = name.format(width=width, columns=columns, part=number + 1, parts=len(parts))
        part.graph.name = stem
        onnx.save(part, out / f"{stem}.onnx")


def _last_row(proto: onnx.ModelProto, width: int) -> None:
    """Keep the logits of the last row alone."""
    graph = proto.graph
    maker = next(node for node in graph.node if "logits" in node.output)
    maker.output[0] = "logits:all"
    ends = {"logits:from": [width - 1], "logits:to": [width], "logits:axis": [1]}
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.int64), k) for k, v in ends.items())
    graph.node.append(helper.make_node("Slice", ["logits:all", *ends], ["logits"], name="logits:last"))
    value = next(value for value in graph.output if value.name == "logits")
    value.type.tensor_type.shape.dim[1].dim_value = 1


def _kv_codes(bundle: Bundle) -> dict[str, Code]:
    """uint8 encodings of each layer's keys and values, over what a text reaches."""
    session = CpuSession(bundle)
    count = min(100, bundle.target.context)
    tokens = [int(token) for token in np.random.default_rng(3).integers(8, 300, count)]
    for _ in prefill(session, tokens, 0, len(tokens)):
        pass
    rows = session.save(len(tokens))
    codes = {}
    for kind, arrays in (("key", rows.keys), ("value", rows.values)):
        for i, array in enumerate(arrays):
            low, high = min(0.0, float(array.min())), max(0.0, float(array.max()))
            scale = float(np.float32((high - low) / 255))
            codes[f"past_{kind}_{i}"] = Code("uint8", scale, round(-low / scale))
    return codes


def _border_codes(bundle: Bundle) -> dict[str, Code]:
    session = CpuSession(bundle)
    rows = session.forward([5, 9, 300], [0, 1, 2], causal(0, 3))
    reach = 1.5 * max(float(np.abs(rows.logits(i)).max()) for i in range(3))
    turn = Code("uint16", float(np.float32(2 / 65534)), 32767)
    return {
        "attention_mask": Code("uint16", float(np.float32(50 / 65535)), 65535),
        "position_ids_cos": turn,
        "position_ids_sin": turn,
        "logits": Code("uint16", float(np.float32(2 * reach / 65535)), 32768),
    }


def _rounded(proto: onnx.ModelProto, codes: Mapping[str, Code], *, integers: bool) -> onnx.ModelProto:
    """The graph with a Q/DQ pair at each encoded input and output. With `integers` the graph's border itself
    is integer; without, the same roundings happen inside and the border stays float32."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}

    def constants(name: str, code: Code) -> list[str]:
        names = [f"{name}:scale", f"{name}:zero"]
        if names[0] not in {tensor.name for tensor in graph.initializer}:
            graph.initializer.append(numpy_helper.from_array(np.array(code.scale, np.float32), names[0]))
            graph.initializer.append(numpy_helper.from_array(np.array(code.zero, code.dtype), names[1]))
        return names

    def retype(value: onnx.ValueInfoProto, code: Code) -> None:
        if integers:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(code.dtype))
            value.type.tensor_type.elem_type = kind

    for value in graph.input:
        code = codes.get(value.name.removesuffix("_in"))
        if code is None:
            continue
        names, stored = constants(value.name, code), value.name
        if not integers and value.name.startswith("past_"):
            continue  # what comes out is rounded already
        if not integers:
            stored = f"{value.name}:stored"
            nodes.append(helper.make_node("QuantizeLinear", [value.name, *names], [stored], name=stored))
        renamed[value.name] = f"{value.name}:real"
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [stored, *names], [f"{value.name}:real"], name=f"{value.name}:real"
            )
        )
        retype(value, code)
    outputs = {value.name: value for value in graph.output}
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        # Shapes are asked of the input itself.
        if node.op_type != "Shape":
            copy.input[:] = [renamed.get(name, name) for name in node.input]
        nodes.append(copy)
        for index, name in enumerate(node.output):
            code = codes.get(name.removesuffix("_out")) if name in outputs else None
            if code is None:
                continue
            names = constants(name, code)
            copy.output[index] = f"{name}:raw"
            copy.name = f"{name}:raw"
            stored = name if integers else f"{name}:stored"
            real = f"{name}:real" if integers else name
            nodes.append(helper.make_node("QuantizeLinear", [f"{name}:raw", *names], [stored], name=stored))
            nodes.append(helper.make_node("DequantizeLinear", [stored, *names], [real], name=real))
            if integers:
                renamed[name] = real
                retype(outputs[name], code)
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def import_folder(folder: Path, path: Path, **options: Any) -> Bundle:
    """`hexgraft import` of a folder, quietly; `options` are those of ImportOptions."""
    import_bundle(
        folder,
        path,
        options=ImportOptions(**options),
        report=lambda step: None,
        say=lambda words: None,
    )
    return open_bundle(path)
