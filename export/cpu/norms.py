"""An addition and the norm that reads it as one operator of ONNX Runtime's own, in graphs for the CPU alone.

A pass over one row is mostly many small nodes, and these are two of six that every layer has beside products
and attention. The operator works row by row, so that bits are the same at every width.
"""

from __future__ import annotations

import onnx
from onnx import helper

from hexgraft.models.graph import ORT_DOMAIN, import_ort_domain


def join_norms(proto: onnx.ModelProto) -> None:
    """Replace every RMSNormalization of a sum of two rows, and the Add before it, in place. Values keep their
    names; a sum of a row and a bias stays as it is, which the operator does not take."""
    nodes = proto.graph.node
    constants = {tensor.name for tensor in proto.graph.initializer}
    sums = {
        node.output[0]: node for node in nodes if node.op_type == "Add" and constants.isdisjoint(node.input)
    }
    norms = {
        node.input[0]: node for node in nodes if node.op_type == "RMSNormalization" and node.input[0] in sums
    }
    if not norms:
        return
    joined = {norm.output[0] for norm in norms.values()}
    kept = onnx.GraphProto()
    for node in nodes:
        if node.output[0] in norms:
            kept.node.append(_joined(node, norms[node.output[0]]))
        elif node.output[0] not in joined:
            kept.node.append(node)
    del nodes[:]
    nodes.extend(kept.node)
    import_ort_domain(proto)


def _joined(add: onnx.NodeProto, norm: onnx.NodeProto) -> onnx.NodeProto:
    epsilon = next(item.f for item in norm.attribute if item.name == "epsilon")
    normed, total = norm.output[0], add.output[0]
    return helper.make_node(
        "SkipSimplifiedLayerNormalization",
        [*add.input, norm.input[1]],
        [normed, "", "", total],
        name=normed,
        domain=ORT_DOMAIN,
        epsilon=epsilon,
    )
