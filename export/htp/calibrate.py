"""Static calibration: the decode loop runs real text through a graph that also tells what its values reach.

Prefill, plain decoding and tree passes all take part, so that ranges have seen tree masks too.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from hexgraft.export.htp.layers import LayeredRuntime, float_runtime, is_large
from hexgraft.export.htp.network import Network, Projection
from hexgraft.export.htp.ranges import Ranges
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuRows, CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.session import Floats, Visibility
from hexgraft.models.errors import ExportError

LEAST_TOKENS = 256
"""Fewer than these tell too little of what values reach."""
_PROMPT = 192
_DECODE = 4
_TREES = 16
_CONTINUED = 2
"""Prompts that are also decoded: a large model takes seconds for each such pass."""
_LARGE_PROMPT = 128
_LARGE_TOKENS = 512
"""Of a large model less text runs through: it takes seconds for each pass."""
_TREE_SIZE = 16
_CONTINUED = _DECODE + _TREES + _TREE_SIZE
"""Slots that a prompt is continued by at most."""
LEAST_SLOTS = 2 + _CONTINUED
"""A cache must hold a prompt and what it is continued by."""


def calibrate(bundle: Bundle, role: str, texts: Sequence[Sequence[int]], *, threads: int = 0) -> Ranges:
    """Ranges of every float value over `texts` (token ids each), driven through the decode loop.

    Each text is cut into prompts; every prompt is prefilled and then continued, a few tokens plainly and a
    few rounds with trees that the text itself proposes. A draft head drafts in these rounds, for the fp32
    target, so that its ranges are those of the target's states and of its own. Raises ExportError if the
    texts are too short.
    """
    total = sum(len(text) for text in texts)
    if total < LEAST_TOKENS:
        raise ExportError(
            f"the calibration text has {total} tokens, at least {LEAST_TOKENS} are needed",
            "give a longer text with --calibration FILE",
        )
    network = Network(bundle, role)
    session = _Calibrating(network, bundle, role, threads)
    room = session.spec.capacity - _CONTINUED
    length = max(1, min(_LARGE_PROMPT if is_large(network) else _PROMPT, room))
    prompts = [text[start : start + length] for text in texts for start in range(0, len(text), length)]
    if is_large(network):
        prompts = prompts[: _LARGE_TOKENS // length]
    prompts = [prompt for prompt in prompts if len(prompt) > 1]
    if network.model.head is not None:
        _drive_head(bundle, session, prompts, threads)
    else:
        for number, prompt in enumerate(prompts):
            _drive(session, prompt, number < _CONTINUED)
    session.close()
    return session.ranges


def _drive(session: CpuSession, prompt: Sequence[int], go_on: bool) -> None:
    plain = Decoder(session, None, DecodeOptions(max_tokens=_DECODE, tree_size=1))
    plain.begin(prompt)
    if not go_on:
        return
    for _ in plain.rounds():
        pass
    size = min(_TREE_SIZE, session.spec.max_width)
    trees = Decoder(session, Lookup(), DecodeOptions(max_tokens=_TREES, tree_size=size))
    trees.begin(plain.tokens)
    for _ in trees.rounds():
        pass


def _drive_head(bundle: Bundle, session: CpuSession, prompts: Sequence[Sequence[int]], threads: int) -> None:
    """One round behind every prompt, since the last of a text is read when something is drafted, and more
    behind the first ones."""
    runtime = float_runtime(Network(bundle, "target"), threads)
    target = CpuSession(bundle, threads=threads, runtime=runtime)
    size = min(_TREE_SIZE, target.spec.max_width, session.spec.max_width)
    options = DecodeOptions(max_tokens=_TREES, tree_size=size)
    for number, prompt in enumerate(prompts):
        decoder = Decoder(target, make_drafter("levels", bundle, lambda: session), options)
        decoder.begin(prompt)
        for _ in decoder.rounds():
            if number >= _CONTINUED:
                break
    target.close()


class _Calibrating(CpuSession):
    """A CPU session whose graph also tells the extremes of its values; nothing else differs."""

    def __init__(self, network: Network, bundle: Bundle, role: str, threads: int) -> None:
        self._observer = _Observer(network)
        self._layers = LayeredRuntime(network, threads, self._observer)
        self.ranges = Ranges()
        super().__init__(bundle, role, runtime=self._layers)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> CpuRows:
        rows = super().forward(tokens, positions, visible)
        found: dict[str, dict[str, Floats]] = {"squares": {}, "peaks": {}}
        for values, observed in zip(self._observer.values, self._layers.observed, strict=True):
            lows, highs = observed.pop("lows"), observed.pop("highs")
            for name, low, high in zip(values, lows, highs, strict=True):
                self.ranges.widen(name, float(low), float(high))
            for name, numbers in observed.items():
                kind, _, weight = name.partition(":")
                found[kind][weight] = numbers
        self.ranges.add_inputs(found["squares"], found["peaks"], rows.count)
        return rows


class _Observer:
    """Adds four kinds of output to each part of a graph: `lows` and `highs` of its values (`values`, in the
    order of the parts), and the sum of squares and the peaks of each projection's input."""

    def __init__(self, network: Network) -> None:
        self._names = set(network.values())
        self._projections = list(network.projections())
        self.values: list[list[str]] = []

    def __call__(self, graph: onnx.GraphProto) -> None:
        made = [value.name for value in graph.input]
        made += [output for node in graph.node for output in node.output]
        values = [name for name in made if name in self._names]
        self.values.append(values)
        names = {node.name for node in graph.node}
        projections = [projection for projection in self._projections if projection.node in names]
        looks = {value: _look(value) for value in values}
        for kind in ("squares", "peaks"):
            for projection in projections:
                looks[projection.input] += _look_at_input(graph, projection, kind)
        # Each look directly behind what it looks at, which may then be forgotten.
        ordered = [look for value in graph.input for look in looks.get(value.name, [])]
        for node in graph.node:
            ordered.append(node)
            ordered += [look for output in node.output for look in looks.get(output, [])]
        for name in ("lows", "highs"):
            ordered.append(
                helper.make_node("Concat", [f"{value}:{name}" for value in values], [name], axis=0)
            )
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(values)]))
        graph.initializer.append(helper.make_tensor("one_number", TensorProto.INT64, [1], [1]))
        nodes = [_copy(node) for node in ordered]
        del graph.node[:]
        graph.node.extend(nodes)


def _look(value: str) -> list[onnx.NodeProto]:
    """Nodes that tell the least and the greatest number of a value."""
    nodes = []
    for op, name in (("ReduceMin", f"{value}:lows"), ("ReduceMax", f"{value}:highs")):
        nodes.append(helper.make_node(op, [value], [name + ".scalar"], keepdims=0))
        nodes.append(helper.make_node("Reshape", [name + ".scalar", "one_number"], [name]))
    return nodes


def _look_at_input(graph: onnx.GraphProto, projection: Projection, kind: str) -> list[onnx.NodeProto]:
    """Nodes that tell the sum of squares, or the largest magnitude, of each component of a projection's
    input."""
    name = f"{kind}:{projection.weight}"
    axes = [0] if projection.axis else [0, 1]  # a Gemm's input has lost the batch axis
    graph.initializer.append(helper.make_tensor(name + ".axes", TensorProto.INT64, [len(axes)], axes))
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["in:" + projection.weight]))
    value, op, nodes = projection.input, "ReduceSumSquare", []
    if kind == "peaks":
        nodes.append(helper.make_node("Abs", [value], [name + ".abs"]))
        value, op = name + ".abs", "ReduceMax"
    return [*nodes, helper.make_node(op, [value, name + ".axes"], [name], keepdims=0)]


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
