"""What an export of a checkpoint will take, told before it is made: disk, memory to export, memory to run."""

from __future__ import annotations

from dataclasses import dataclass

from hexgraft.export.cpu.graph import PACKED, packed_size
from hexgraft.export.htp.precision import BITS, FLOAT, PRECISIONS, Precision, make_precision
from hexgraft.models.config import ModelConfig
from hexgraft.models.decoder import build_decoder
from hexgraft.models.graph import Graph, Weight

EXPORT_BASE = 120_000_000
"""Bytes an export takes beside its two buffers of turned matrices and the tokenizer: the interpreter, its
libraries, a few blocks."""

TOKEN = 600
"""Bytes a token takes in a tokenizer as it is read."""

RUN_BASE = 150_000_000
"""Bytes a run takes beside weights, cache and logits."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes. `weights` of the graph at a `precision`; `running` with the cache of the whole context full."""

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


def estimate(config: ModelConfig, context: int, width: int = 32) -> Sizes:
    """Sizes for one model; `width` is the widest pass, whose logits are held."""
    config = config.within(context)
    graph = build_decoder(config, "model.weights", name="target")
    cache = 2 * 4 * config.layers * config.kv_heads * config.head_dim * context
    logits = 4 * width * config.vocab
    turned = [weight.nbytes for weight in graph.weights if weight.transposed]  # into two buffers by turns
    sizes = [("fp32", graph.weights_size)]
    sizes += [(name, size) for name in PACKED if (size := packed_size(graph, name))]
    sizes += [(name, _stored(graph, config, make_precision(name))) for name in PRECISIONS]
    return Sizes(
        parameters=sum(weight.nbytes for weight in graph.weights) // 4,
        context=context,
        cache=cache,
        exporting=EXPORT_BASE + TOKEN * config.vocab + max(turned[::2]) + max(turned[1::2], default=0),
        estimates=tuple(Estimate(name, size, RUN_BASE + size + cache + logits) for name, size in sizes),
    )


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
