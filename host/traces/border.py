"""Whether rounding may have decided what a trace's top-k, top-p or min-p let through."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.sampling import History
from hexgraft.host.traces.trace import Judged, Trace


def at_border(trace: Trace, index: int, judged: Judged, token: int, noise: float) -> bool:
    """Whether `token` may have been dropped or not where `trace` emitted its token number `index`, had every
    logit been off by up to `noise`, as far as the recorded candidates tell."""
    sampling = trace.header.sampling
    known = {i: logit for i, logit in (*judged.top, (judged.token, judged.logit)) if logit is not None}
    if not sampling.temperature or token not in known:
        return False
    ids = np.array(sorted(known), np.int64)
    row = np.array([known[i] for i in ids.tolist()], np.float64)
    History(trace.header.prompt).after(trace.emitted[:index]).penalise(row, sampling, ids)
    row = (row - row.max()) / sampling.temperature
    slack = 2 * noise / sampling.temperature
    own = float(row[ids == token][0])
    others = row[ids != token]
    surely, maybe = others[others > own + slack], others[others >= own - slack]
    if 0 < sampling.top_k <= len(maybe):
        return len(surely) < sampling.top_k
    if sampling.min_p > 0 and own <= math.log(sampling.min_p) + slack:
        return own >= math.log(sampling.min_p) - slack
    # Of the mass of tokens that were not recorded nothing is known, so this may be said of too many.
    kept = np.sort(row)[-sampling.top_k :]  # all of them where `top_k` is 0
    return sampling.top_p < 1 and _mass(maybe) * math.exp(slack) >= sampling.top_p * _mass(kept)


def _mass(logs: NDArray[np.float64]) -> float:
    return float(np.exp(logs).sum())
