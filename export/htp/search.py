"""Finds the few projections that must stay at a higher precision for the whole to agree with fp32.

Each projection is quantised alone and judged by the KL it causes; those that cause most for their size are
kept higher, as few as reach the wanted agreement. All of it runs on the CPU, which computes QDQ graphs
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime as ort

from hexgraft.export.htp.layers import float_runtime
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.precision import FLOAT, Precision
from hexgraft.export.htp.quantise import quantise
from hexgraft.export.htp.ranges import Ranges
from hexgraft.export.htp.weights import QuantisedWeights
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Floats
from hexgraft.host.traces.replay import Figures, ForcedPass, Pair, measure, prefill_passes
from hexgraft.models.errors import ExportError

_WIDTH = 128
_ROWS = 512
_SCAN_ROWS = 128
KEPT_LIMIT = 0.5
"""Share of the projections' weights that may be kept higher before the search gives up."""


def search_keeps(
    network: Network,
    bundle: Bundle,
    precision: Precision,
    ranges: Ranges,
    tokens: Sequence[int],
    wanted: float,
    say: Callable[[str], None],
) -> Precision:
    """`precision` with projections kept higher until top-1 agreement over `tokens` reaches `wanted`.

    Raises ExportError, with the figures reached, if half of the weights kept higher is not enough.
    """
    judge = Judge(network, bundle, ranges, tokens)
    try:
        found = judge.figures(precision, _ROWS)
        say(f"nothing kept higher: agreement {found.agreement:.1%}, KL {found.kl:.3g}")
        if found.agreement >= wanted:
            return precision
        return _fewest(judge, precision, wanted, say)
    finally:
        judge.close()


def _fewest(judge: Judge, precision: Precision, wanted: float, say: Callable[[str], None]) -> Precision:
    ranked = judge.ranking(precision, say)
    total = sum(judge.sizes.values())
    allowed, kept = 0, 0
    while allowed < len(ranked) and kept + judge.sizes[ranked[allowed]] <= KEPT_LIMIT * total:
        kept += judge.sizes[ranked[allowed]]
        allowed += 1
    good, bad, best = None, 0, 0.0
    count = 1
    while good is None and bad < allowed:
        count = min(max(1, bad * 2), allowed)
        agreement = judge.agreement(precision, ranked[:count], say)
        best = max(best, agreement)
        good, bad = (count, bad) if agreement >= wanted else (None, count)
    if good is None:
        raise ExportError(
            f"agreement reaches {best:.1%} with {allowed} projections kept higher, {wanted:.1%} is wanted",
            "lower --min-agreement, or choose a higher --precision",
        )
    while good - bad > 1:
        middle = (good + bad) // 2
        if judge.agreement(precision, ranked[:middle], say) >= wanted:
            good = middle
        else:
            bad = middle
    share = sum(judge.sizes[name] for name in ranked[:good]) / total
    say(f"kept higher: {', '.join(ranked[:good])} ({share:.1%} of the projections' weights)")
    return judge.keeping(precision, ranked[:good])


class Judge:
    """Runs variants of the network on the CPU over the same forced passes."""

    def __init__(self, network: Network, bundle: Bundle, ranges: Ranges, tokens: Sequence[int]) -> None:
        self._network, self._bundle, self._ranges = network, bundle, ranges
        self._width = min(_WIDTH, network.model.context)
        self._tokens = tokens[: min(_ROWS + 1, network.model.context)]
        self._weights = QuantisedWeights(network, "search.work.weights")
        self._file = network.folder / "search.work.onnx"
        self.sizes = {
            projection.weight: int(np.prod(network.initializers[projection.initializer].dims))
            for projection in network.projections()
            if projection.weight != "head"
        }
        runtime = float_runtime(network)
        floats = CpuSession(bundle, network.role, widths=[self._width], whole=True, runtime=runtime)
        self._reference = self._logits(floats, _ROWS)

    def close(self) -> None:
        self._weights.path.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)

    def figures(self, precision: Precision, rows: int) -> Figures:
        """Over the first `rows` rows of prefill."""
        part = quantise(
            self._network, self._network.static(self._width), precision, self._ranges, self._weights
        )
        onnx.save(part, self._file)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        runtime = ort.InferenceSession(str(self._file), options, providers=["CPUExecutionProvider"])
        session = CpuSession(
            self._bundle, self._network.role, widths=[self._width], whole=True, runtime=runtime
        )
        figures = Figures()
        for forced, theirs in self._logits(session, rows):
            ours = self._reference[forced.context // self._width][1]
            for row, (a, b) in enumerate(zip(ours, theirs, strict=False)):
                figures.add(measure(Pair(forced, row, a, b)))
        return figures

    def agreement(self, precision: Precision, kept: Sequence[str], say: Callable[[str], None]) -> float:
        figures = self.figures(self.keeping(precision, kept), _ROWS)
        say(f"{len(kept)} kept higher: agreement {figures.agreement:.1%}, KL {figures.kl:.3g}")
        return figures.agreement

    def keeping(self, precision: Precision, names: Sequence[str]) -> Precision:
        """Each of `names` one step higher: 4 bits become 8, 8 become fp16."""
        for name in names:
            higher = "w8" if precision.of(name) == "w4" else FLOAT
            if higher == FLOAT and precision.integer:
                raise ExportError(
                    "a chip without fp16 has nothing above 8 bits to keep a layer in",
                    "leave out --min-agreement, or export for chips with fp16",
                )
            precision = precision.keeping([name], higher)
        return precision

    def ranking(self, precision: Precision, say: Callable[[str], None]) -> list[str]:
        """Projections by the KL each causes alone, for its size, largest first."""
        floats = Precision("fp16", precision.block, embed=FLOAT, head=FLOAT)
        harm = {}
        for number, name in enumerate(self.sizes):
            format = precision.of(name)
            alone = floats.keeping([name], format)
            harm[name] = 0.0 if format == FLOAT else self.figures(alone, _SCAN_ROWS).kl
            if number % 20 == 19:
                say(f"{number + 1} of {len(self.sizes)} projections judged")
        return sorted(self.sizes, key=lambda name: -harm[name] / self.sizes[name])

    def _logits(self, session: CpuSession, rows: int) -> list[tuple[ForcedPass, list[Floats]]]:
        found = []
        for forced in prefill_passes(self._tokens, min(rows, len(self._tokens) - 1), self._width):
            given = session.forward(forced.tokens, forced.positions, forced.visible)
            found.append((forced, [given.logits(row) for row in range(len(forced.tokens))]))
            session.store(forced.accepted, [forced.context + row for row in forced.accepted])
        session.close()
        return found
