"""Balances what a norm gives against the weights behind it, so that outlying inputs cost less precision.

Input channels that reach far are divided by a factor in the norm's weights and their rows multiplied by it in
the projection: nothing changes but what rounding does. The idea is that of SmoothQuant (arXiv 2211.10438) and
AWQ (arXiv 2306.00978).
"""

from __future__ import annotations

import numpy as np

from hexgraft.export.htp.network import Network
from hexgraft.export.htp.precision import FLOAT, Precision
from hexgraft.export.htp.ranges import Ranges
from hexgraft.export.htp.rounding import Floats
from hexgraft.export.htp.weights import is_exact

_POWER = 0.5
"""Half of the way between the inputs' magnitudes and none of it."""


def find_balances(network: Network, precision: Precision, ranges: Ranges) -> dict[str, Floats]:
    """Factors [in] by the norm's output they divide, for norms that a single quantised MatMul reads; `ranges`
    of these outputs become those of the balanced values. Weights on a 4-bit grid already are left alone."""
    readers: dict[str, int] = {}
    norms = set()
    for node in network.proto.graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
        if node.op_type == "RMSNormalization":
            norms.add(node.output[0])
    balances = {}
    for projection in network.projections():
        name, squares = projection.input, ranges.squares.get(projection.weight)
        wanted = precision.of(projection.weight) != FLOAT and projection.axis == 0
        if squares is None or not wanted or name not in norms or readers[name] != 1:
            continue
        if precision.of(projection.weight) == "w4" and is_exact(
            network, projection.initializer, precision.block
        ):
            continue  # nothing will be rounded, unless factors move the weights
        logs = 0.5 * _POWER * np.log(squares + squares.mean() * 1e-6 + 1e-30)
        factors = np.exp(logs - logs.mean()).astype(np.float32)
        reach = float((ranges.peaks[projection.weight] / factors).max())
        ranges.low[name], ranges.high[name] = -reach, reach
        balances[name] = factors
    return balances
