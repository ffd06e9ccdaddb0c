"""Bisection of a failing build: the layer behind which the NPU's values leave the fp32 ones."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from hexgraft.export.htp.build import Build
from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.layers import LayeredRuntime
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.htp.runtime import HtpRuntime
from hexgraft.host.session import Floats, causal
from hexgraft.host.traces.replay import ForcedPass
from hexgraft.models.errors import HexgraftError

_STAGES = ("attended", "out")
"""The residual stream after attention and after the feed-forward: two points a layer."""


def worst_layer(build: Build, forced: ForcedPass) -> str:
    """Which half layer adds most noise, in words, from one pass over an empty cache on the emulator."""
    width = min(build.host_widths, key=lambda width: (width < 8, width))
    rows = min(width, len(forced.tokens))
    values = [f"layers.{i}.{stage}" for i in range(build.network.model.layers) for stage in _STAGES]
    try:
        theirs = _run_npu(build, width, values, forced.tokens[:rows])
    except HexgraftError as error:
        return f"the layers could not be compared: {error.message}"
    ours = _run_cpu(build, width, values, forced.tokens[:rows])
    ratios = {value: _sqnr(ours[value][0, :rows], theirs[value][0, :rows]) for value in values}
    return describe(ratios)


def describe(ratios: dict[str, float]) -> str:
    """The half layer that adds most noise, of signal-to-noise ratios (dB) in the order of the network."""
    noise = {name: 10 ** (-ratio / 10) for name, ratio in ratios.items()}
    added, before = {}, 0.0
    for name, share in noise.items():
        added[name], before = share - before, share
    worst = max(added, key=lambda name: added[name])
    layer, _, stage = worst.rpartition(".")
    half = "attention" if stage == "attended" else "feed-forward"
    names = list(ratios)
    at = names.index(worst)
    start = f"from {ratios[names[at - 1]]:.1f} dB " if at else ""
    return f"most noise comes from the {half} of {layer}, where SQNR falls {start}to {ratios[worst]:.1f} dB"


def _run_npu(build: Build, width: int, values: Sequence[str], tokens: Sequence[int]) -> dict[str, Floats]:
    """The build's own graphs with `values` as further outputs, compiled for the emulator and run."""
    taps: dict[str, Floats] = {}
    size, soc = (width, build.network.model.context), build.variant.socs[0]
    with tempfile.TemporaryDirectory(dir=build.network.folder, prefix="bisect.work-") as scratch:
        wrappers: list[Path] = []
        for part in range(build.parts):
            proto = onnx.load(build.work_file(*size, part), load_external_data=False)
            _tap(proto.graph, values, width, build.network.model.hidden)
            file = build.network.folder / f"bisect{part}.work.onnx"
            onnx.save(proto, file)
            name = f"bisect{part}"
            wrappers += compile_binary({name: file}, Path(scratch), name, soc).wrappers
            file.unlink()
        runtime = HtpRuntime({size: wrappers}, {"soc_model": str(soc.soc_model)})
        try:
            session = _Tapped(build, width, runtime, values, taps)
            session.forward(list(tokens), range(len(tokens)), causal(0, len(tokens)))
        finally:
            runtime.close()
    return taps


def _run_cpu(build: Build, width: int, values: Sequence[str], tokens: Sequence[int]) -> dict[str, Floats]:
    hidden, threads = build.network.model.hidden, build.htp.threads
    runtime = LayeredRuntime(build.network, threads, lambda part: _tap(part, values, width, hidden))
    taps: dict[str, Floats] = {}
    session = _Tapped(build, width, runtime, values, taps)
    session.forward(list(tokens), range(len(tokens)), causal(0, len(tokens)))
    return taps


class _Tapped(CpuSession):
    """A session that also takes the values between the layers."""

    def __init__(
        self, build: Build, width: int, runtime: object, values: Sequence[str], taps: dict[str, Floats]
    ) -> None:
        shape = (1, width, build.network.model.hidden)
        for value in values:
            taps[value] = np.zeros(shape, np.float32)
        self._taps = taps
        super().__init__(build.bundle, build.role, widths=[width], whole=True, runtime=runtime)

    def _bind(self, width: int) -> ort.IOBinding:
        fresh = width not in self._bindings
        binding = super()._bind(width)
        if fresh:
            for name, array in self._taps.items():
                binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding


def _tap(graph: onnx.GraphProto, values: Sequence[str], width: int, hidden: int) -> None:
    made = {output for node in graph.node for output in node.output}
    given = {value.name for value in graph.output}
    for value in values:
        if value in made and value not in given:
            info = helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, width, hidden])
            graph.output.append(info)


def _sqnr(ours: Floats, theirs: Floats) -> float:
    noise = float(np.square(ours.astype(np.float64) - theirs).sum())
    signal = float(np.square(ours.astype(np.float64)).sum())
    if not np.isfinite(noise):
        return -200.0
    return 10 * float(np.log10(signal / noise)) if noise and signal else 200.0
