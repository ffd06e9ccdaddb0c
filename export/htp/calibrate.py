"""Static calibration: the decode loop runs real text through a graph that also tells what its values reach.

Prefill, plain decoding and tree passes all take part, so that ranges have seen tree masks too.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from hexgraft.export.htp.network import Network, Projection
from hexgraft.export.htp.ranges import Ranges
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuRows, CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.session import Visibility
from hexgraft.models.errors import ExportError

LEAST_TOKENS = 256
"""Fewer than these tell too little of what values reach."""
_PROMPT = 192
_DECODE = 4
_TREES = 16
_CONTINUED = 2
"""Prompts that are also decoded: a large model takes seconds for each such pass."""
_LARGE = 1 << 30
"""Bytes of weights from which on a model is large: they stay in the mapped file, as packed copies would
double them, and less text runs through in shorter prompts, as all values of a pass are in memory at once."""
_LARGE_PROMPT = 32
_LARGE_TOKENS = 512
_TREE_SIZE = 16


def calibrate(bundle: Bundle, role: str, texts: Sequence[Sequence[int]], *, threads: int = 0) -> Ranges:
    """Ranges of every float value over `texts` (token ids each), driven through the decode loop.

    Each text is cut into prompts; every prompt is prefilled and then continued, a few tokens plainly and a
    few rounds with trees that the text itself proposes. Raises ExportError if the texts are too short.
    """
    total = sum(len(text) for text in texts)
    if total < LEAST_TOKENS:
        raise ExportError(
            f"the calibration text has {total} tokens, at least {LEAST_TOKENS} are needed",
            "give a longer text with --calibration FILE",
        )
    network = Network(bundle, role)
    session = _Calibrating(network, bundle, role, threads)
    room = session.spec.capacity - _DECODE - _TREES - _TREE_SIZE
    length = max(1, min(_LARGE_PROMPT if is_large(network) else _PROMPT, room))
    prompts = [text[start : start + length] for text in texts for start in range(0, len(text), length)]
    if is_large(network):
        prompts = prompts[: _LARGE_TOKENS // length]
    for number, prompt in enumerate(prompts):
        if len(prompt) > 1:
            _drive(session, prompt, number < _CONTINUED)
    session.close()
    return session.ranges


def is_large(network: Network) -> bool:
    return 4 * network.model.parameters > _LARGE


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


class _Calibrating(CpuSession):
    """A CPU session whose graph also tells the extremes of its values; nothing else differs."""

    def __init__(self, network: Network, bundle: Bundle, role: str, threads: int) -> None:
        self._values = network.values()
        self._inputs = [projection.weight for projection in network.projections()]
        self.ranges = Ranges()
        super().__init__(bundle, role, runtime=_load(network, self._values, threads))

    def _bind(self, width: int) -> ort.IOBinding:
        fresh = width not in self._bindings
        binding = super()._bind(width)
        if fresh:
            more = [f"{kind}:{weight}" for kind in ("squares", "peaks") for weight in self._inputs]
            for name in ("lows", "highs", *more):
                binding.bind_output(name, "cpu")
        return binding

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> CpuRows:
        rows = super().forward(tokens, positions, visible)
        count = len(self._inputs)
        outputs = self._bind(rows.width).get_outputs()[-2 - 2 * count :]
        lows, highs, *found = (output.numpy() for output in outputs)
        for name, low, high in zip(self._values, lows, highs, strict=True):
            self.ranges.widen(name, float(low), float(high))
        squares, peaks = (
            dict(zip(self._inputs, part, strict=True)) for part in (found[:count], found[count:])
        )
        self.ranges.add_inputs(squares, peaks, rows.count)
        return rows


def _load(network: Network, values: Sequence[str], threads: int) -> ort.InferenceSession:
    """The model's graph with three further kinds of output: lows [N] and highs [N] of `values`, and the sum
    of squares [in] of each projection's input."""
    proto = onnx.ModelProto()
    proto.CopyFrom(network.proto)
    graph = proto.graph
    graph.initializer.append(helper.make_tensor("one_number", TensorProto.INT64, [1], [1]))
    for op, name in (("ReduceMin", "lows"), ("ReduceMax", "highs")):
        parts = [f"{value}:{name}" for value in values]
        for value, part in zip(values, parts, strict=True):
            graph.node.append(helper.make_node(op, [value], [part + ".scalar"], keepdims=0))
            graph.node.append(helper.make_node("Reshape", [part + ".scalar", "one_number"], [part]))
        graph.node.append(helper.make_node("Concat", parts, [name], axis=0))
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [len(values)]))
    for kind in ("squares", "peaks"):
        for projection in network.projections():
            _add_input(graph, projection, kind)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(network.folder))
    if is_large(network):
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _add_input(graph: onnx.GraphProto, projection: Projection, kind: str) -> None:
    """The sum of squares, or the largest magnitude, of each component of a projection's input."""
    name = f"{kind}:{projection.weight}"
    axes = [0] if projection.axis else [0, 1]  # a Gemm's input has lost the batch axis
    graph.initializer.append(helper.make_tensor(name + ".axes", TensorProto.INT64, [len(axes)], axes))
    value, op = projection.input, "ReduceSumSquare"
    if kind == "peaks":
        graph.node.append(helper.make_node("Abs", [value], [name + ".abs"]))
        value, op = name + ".abs", "ReduceMax"
    graph.node.append(helper.make_node(op, [value, name + ".axes"], [name], keepdims=0))
    graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["in:" + projection.weight]))
