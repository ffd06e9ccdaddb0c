"""What an export of a checkpoint will take, told before it is made: disk, memory to export, memory to run."""

from __future__ import annotations

from dataclasses import dataclass

from hexgraft.export.cpu.graph import PACKED, packed_size
from hexgraft.export.head import head_graph, own_graph
from hexgraft.export.htp.precision import BITS, FLOAT, PRECISIONS, Precision, make_precision
from hexgraft.export.weights import BUFFERS
from hexgraft.models.config import ModelConfig
from hexgraft.models.decoder import build_decoder
from hexgraft.models.graph import Graph, Weight
from hexgraft.models.head_checkpoint import HeadCheckpoint

EXPORT_BASE = 120_000_000
"""Bytes an export takes beside its buffers of turned matrices and the tokenizer: the interpreter, its
libraries, a few blocks."""

TOKEN = 600
"""Bytes a token takes in a tokenizer as it is read."""

RUN_BASE = 150_000_000
"""Bytes a run takes beside weights, cache and logits."""

WIDEST = 32
"""Rows of the widest pass of a run, whose logits are held."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes. `weights` of the graph at a `precision`, those in the binary for the NPU's; `running` with the
    cache of the whole context full."""

    precision: str
    weights: int
    running: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """`parameters` of the checkpoint, `cache` bytes of keys and values at `context` slots, `exporting` the
    peak memory of a CPU export, and one estimate for each precision, the CPU's first."""

    parameters: int
    context: int
    cache: int
    exporting: int
    estimates: tuple[Estimate, ...]


def estimate(config: ModelConfig, context: int, width: int = WIDEST) -> Sizes:
    """Sizes for one model; `width` is the widest pass, whose logits are held."""
    config = config.within(context)
    graph = build_decoder(config, "model.weights", name="target")
    held = 4 * width * config.vocab + _cache(config, context)
    sizes = [("fp32", graph.weights_size)]
    sizes += [(name, size) for name in PACKED if (size := packed_size(graph, name))]
    sizes += [(name, _stored(graph, config, make_precision(name))) for name in PRECISIONS]
    return Sizes(
        parameters=sum(weight.nbytes for weight in graph.weights) // 4,
        context=context,
        cache=_cache(config, context),
        exporting=_exporting(graph, config),
        estimates=tuple(Estimate(name, size, RUN_BASE + size + held) for name, size in sizes),
    )


def estimate_head(head: HeadCheckpoint, target: Sizes, width: int = WIDEST) -> Sizes:
    """Sizes of a draft head beside a target of the sizes `target`, at the same precisions; `running` is what
    the head adds to the target's.

    On the CPU it stores what it borrows only beside a target in blocks, and in blocks itself. An NPU binary
    holds an embedding and an output matrix of its own.
    """
    config = head.config.layer
    context = min(target.context, config.context)
    own, whole = own_graph(head), head_graph(head, None, tied=False)
    held = 4 * width * head.config.rows + _cache(config, context)
    sizes = []
    for name in (row.precision for row in target.estimates):
        if name in PRECISIONS:
            sizes.append((name, _stored(whole, config, make_precision(name).for_head())))
        elif size := own.weights_size if name == "fp32" else packed_size(whole, name):
            sizes.append((name, size))
    return Sizes(
        parameters=sum(weight.nbytes for weight in own.weights) // 4,
        context=context,
        cache=_cache(config, context),
        exporting=_exporting(own, config),
        estimates=tuple(Estimate(name, size, size + held) for name, size in sizes),
    )


def _cache(config: ModelConfig, context: int) -> int:
    """Bytes of keys and values in float32."""
    return 2 * 4 * config.layers * config.kv_heads * config.head_dim * context


def _exporting(graph: Graph, config: ModelConfig) -> int:
    """Peak memory while the weights of a graph are written."""
    turned = [weight.nbytes for weight in graph.weights if weight.transposed]
    touched = sum(max(turned[place::BUFFERS], default=0) for place in range(BUFFERS))
    return EXPORT_BASE + TOKEN * config.vocab + touched


def _stored(graph: Graph, config: ModelConfig, precision: Precision) -> int:
    """Bytes of an NPU binary's weights: the embedding and a tied head lie there in two formats."""
    total = sum(_bytes(weight, precision.of(weight.name), precision.block) for weight in graph.weights)
    if config.tied:
        embed = next(weight for weight in graph.weights if weight.name == "embed")
        total += _bytes(embed, precision.of("head"), precision.block)
    return total


def _bytes(weight: Weight, format: str, block: int) -> int:
    count = weight.nbytes // 4
    if len(weight.shape) == 1:
        return 2 * count
    scales = 0
    if format != FLOAT:
        scales = 4 * (count // block if block and format == "w4" else max(weight.shape))
    return count * BITS[format] // 8 + scales
