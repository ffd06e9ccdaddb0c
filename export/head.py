"""A draft head in a bundle: its graph beside the target's, whose matrices it uses where it has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hexgraft.export.cpu.graph import pack
from hexgraft.host.manifest import HeadEntry
from hexgraft.models.attention import STACKED
from hexgraft.models.graph import Graph, Loan
from hexgraft.models.head_checkpoint import HeadCheckpoint
from hexgraft.models.head_graph import build_head

FOLDER = "target"
"""ONNX Runtime takes external data only from the graph's own folder."""
HEAD_GRAPH = f"{FOLDER}/head.onnx"
HEAD_WEIGHTS = "head.weights"
_TOKENS = f"{FOLDER}/head.tokens"


def head_graph(
    head: HeadCheckpoint,
    target: Graph | None,
    tied: bool,
    precision: str = "fp32",
    *,
    attention: str = STACKED,
) -> Graph:
    """The head's graph at a precision of the CPU. What it borrows is not stored again, unless the target's
    weights do not lie there in fp32 (`target` None), or it multiplies by them in blocks. `tied` says whether
    the target's head is its embedding, `attention` is `build_decoder`'s. Raises ExportError where blocks do
    not fit."""
    loans: dict[str, Loan] = {}
    if "embed" in head.lent and target is not None:
        loans["embed"] = target.loan("embed")
    if "head" in head.lent and target is not None and precision == "fp32":
        loan = target.loan("embed" if tied else "head")
        loans["head"] = loan if "embed" in head.lent else replace(loan, name="head")
    graph = build_head(head.config, HEAD_WEIGHTS, name="draft", loans=loans, attention=attention)
    return graph if precision == "fp32" else pack(graph, head, precision, steady=False)


def write_head_entry(head: HeadCheckpoint, folder: Path) -> HeadEntry:
    """What the manifest says of a head; writes the file of its tokens, where it has not all."""
    config, tokens = head.config, None
    if head.tokens is not None:
        tokens = _TOKENS
        (folder / tokens).write_bytes(head.tokens.astype("<i4").tobytes())
    return HeadEntry(config.kind, config.feature_size, config.rows, tokens)


def own_graph(head: HeadCheckpoint) -> Graph:
    """The head's graph with the weights that it brings, wherever those it borrows may lie."""
    lent = {name: Loan(name, (), "", 0) for name in head.lent}
    return build_head(head.config, HEAD_WEIGHTS, name="draft", loans=lent)
