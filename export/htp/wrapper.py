"""EPContext wrappers: the small ONNX file by which a runtime finds a graph inside a context binary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from hexgraft.models.errors import ExportError

IR_VERSION = 10
OPSET = 21
"""What runtimes some years old still read; the wrapper holds one EPContext node and needs no more."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What a wrapper says: the graph's name inside the binary, the binary's file name, the QAIRT release."""

    graph: str
    binary: str
    qairt: str


def check_whole(path: Path) -> None:
    """Raise ExportError unless the file is one EPContext node: everything on the NPU, in one piece."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    left = [node for node in nodes if node.op_type != "EPContext"]
    if left:
        raise rejected(left[0], len(left))
    if len(nodes) != 1:
        raise ExportError(
            f"{path.stem} was cut into {len(nodes)} pieces, the NPU must run it as one",
            "report the model's family and sizes, its graph holds an operator that parts it",
        )


def rejected(node: onnx.NodeProto, count: int) -> ExportError:
    """The error that names the first operator the NPU refused."""
    more = f" and {count - 1} more" if count > 1 else ""
    return ExportError(
        f"the NPU refuses the operator {node.op_type} of node {node.name or node.output[0]}{more}",
        'keep its layer in fp16 with --keep "LAYER:fp16", or choose another --precision',
    )


def rewrite(path: Path, binary: str) -> Wrapper:
    """Make the wrapper readable to old runtimes, and have it name `binary`, a file beside it."""
    proto = onnx.load(path, load_external_data=False)
    proto.ir_version = IR_VERSION
    del proto.opset_import[:]
    proto.opset_import.extend(
        [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("com.microsoft", 1)]
    )
    node = proto.graph.node[0]
    qairt = ""
    for attribute in node.attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = binary.encode()
        elif attribute.name == "ep_sdk_version":
            qairt = attribute.s.decode()
    onnx.save(proto, path)
    return Wrapper(node.name, binary, qairt)


def binary_of(path: Path) -> str:
    """The name of the binary that a wrapper, rewritten or written here, is for."""
    node = onnx.load(path, load_external_data=False).graph.node[0]
    return str(next(item.s.decode() for item in node.attribute if item.name == "ep_cache_context"))


def write_wrapper(
    path: Path,
    wrapper: Wrapper,
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> None:
    """Write the wrapper of a graph that another compiler put into a binary, as `rewrite` leaves them."""
    node = onnx.helper.make_node(
        "EPContext",
        [value.name for value in inputs],
        [value.name for value in outputs],
        name=wrapper.graph,
        domain="com.microsoft",
        main_context=1,
        embed_mode=0,
        ep_cache_context=wrapper.binary,
        ep_sdk_version=wrapper.qairt,
        partition_name=wrapper.graph,
        source="QNNExecutionProvider",
    )
    graph = onnx.helper.make_graph([node], path.stem, list(inputs), list(outputs))
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets), path)
