"""Cuts a static graph into parts that run one after the other, each with the cache of its own layers."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper


def plan_parts(layer_bytes: int, layers: int, embed_bytes: int, head_bytes: int, limit: int) -> list[str]:
    """Values to cut after, so that no part's weights pass `limit` bytes; none where all fits into one part.

    The embedding stays with the first layers and the head with the last as long as they fit.
    """
    if embed_bytes + layers * layer_bytes + head_bytes <= limit:
        return []
    cuts: list[str] = []
    room = limit - embed_bytes
    if room < layer_bytes:
        cuts.append("embedded")
        room = limit
    for layer in range(layers):
        if room < layer_bytes and cuts[-1:] != [f"layers.{layer - 1}.out"] and layer:
            cuts.append(f"layers.{layer - 1}.out")
            room = limit
        room -= layer_bytes
    if room < head_bytes:
        cuts.append(f"layers.{layers - 1}.out")
    return cuts


def split(
    proto: onnx.ModelProto, cuts: Sequence[str], hidden: int, width: int | str
) -> list[onnx.ModelProto]:
    """The graph as len(cuts) + 1 graphs. Between parts pass float values [1, width, hidden] under their own
    names: one, and the earlier states that the output `hidden` holds. What every layer shares (RoPE tables,
    the mask) is computed anew in each."""
    if not cuts:
        return [proto]
    producers = {output: node for node in proto.graph.node for output in node.output}
    order = {node.name: index for index, node in enumerate(proto.graph.node)}
    ends: list[list[str]] = [[] for _ in range(len(cuts) + 1)]
    for value in proto.graph.output:
        ends[_part_of(value.name, producers, cuts)].append(value.name)
    carried = _carried(producers, cuts)
    for state, number in carried.items():
        ends[number].append(state)
    parts = []
    for number, outputs in enumerate(ends):
        wanted = outputs + list(cuts[number : number + 1])
        nodes, met = _ancestors(wanted, producers, {*cuts, *carried} - set(wanted))
        ordered = sorted(nodes.values(), key=lambda node: order[node.name])
        parts.append(_part(proto, number, ordered, sorted(met), wanted, (1, width, hidden)))
    return parts


def _part_of(value: str, producers: dict[str, onnx.NodeProto], cuts: Sequence[str]) -> int:
    """The first part that can give `value`."""
    _, met = _ancestors([value], producers, set(cuts))
    return max((cuts.index(cut) + 1 for cut in met), default=0)


def _carried(producers: dict[str, onnx.NodeProto], cuts: Sequence[str]) -> dict[str, int]:
    """States in the output `hidden` that an earlier part makes than the one that gives it, and that part."""
    if "hidden" not in producers:
        return {}
    last = _part_of("hidden", producers, cuts)
    made = {state: _part_of(state, producers, cuts) for state in producers["hidden"].input}
    return {state: part for state, part in made.items() if part < last and state not in cuts}


def _ancestors(
    values: Sequence[str], producers: dict[str, onnx.NodeProto], stops: set[str]
) -> tuple[dict[str, onnx.NodeProto], set[str]]:
    """Nodes that `values` need, by name, not looking behind `stops`; and the stops met."""
    nodes: dict[str, onnx.NodeProto] = {}
    met: set[str] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in stops:
            met.add(value)
            continue
        node = producers.get(value)
        if node is not None and node.name not in nodes:
            nodes[node.name] = node
            waiting += node.input
    return nodes, met


def _part(
    whole: onnx.ModelProto,
    number: int,
    nodes: Sequence[onnx.NodeProto],
    received: Sequence[str],
    given: Sequence[str],
    shape: Sequence[int | str],
) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    known = {value.name: value for value in whole.graph.output}
    part = onnx.ModelProto(ir_version=whole.ir_version, producer_name=whole.producer_name)
    part.opset_import.extend(whole.opset_import)
    part.graph.name = f"{whole.graph.name}_part{number}"
    part.graph.node.extend(nodes)
    part.graph.initializer.extend(tensor for tensor in whole.graph.initializer if tensor.name in used)
    passed = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in received]
    part.graph.input.extend([value for value in whole.graph.input if value.name in used] + passed)
    for name in given:
        value = known.get(name) or helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        part.graph.output.append(value)
    return part
