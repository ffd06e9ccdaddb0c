"""Which graphs of the vendor's export make a pass: by width and context, parts in order, and checked against
the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hexgraft.export.foreign.source import QUANTISED, SourceGraph, Tensor
from hexgraft.host.manifest import Encoding, KvEncoding
from hexgraft.models.config import ModelConfig
from hexgraft.models.errors import ExportError

_HOST = ("input_ids", "attention_mask", "position_ids_cos", "position_ids_sin")
"""Inputs the host fills, cache apart."""
_PARTS = "is the config.json that of this model, and is every part there?"


@dataclass(frozen=True, slots=True)
class Chains:
    """The chosen graphs: `columns` CL, and width -> parts in order, widths ascending."""

    columns: int
    parts: dict[int, list[SourceGraph]]

    def __post_init__(self) -> None:
        if max(self.parts) >= self.columns:
            raise ExportError(
                f"graphs of {max(self.parts)} rows over {self.columns} columns leave no cache",
                "choose others with --widths or --context-length",
            )


def choose_chains(graphs: Sequence[SourceGraph], columns: int | None = None) -> Chains:
    """Chains of one context length, the largest unless `columns` says which.

    Raises ExportError where no such graphs are there, or parts cannot be put in order by the names of what
    passes between them.
    """
    for graph in graphs:
        _refuse_layout(graph)
    have = sorted({graph.columns for graph in graphs if graph.columns is not None})
    if not have:
        raise ExportError("no graph takes an attention_mask", "give the folder of a language model's export")
    if columns is not None and columns not in have:
        raise ExportError(
            f"there are no graphs of context length {columns}", f"there are {', '.join(map(str, have))}"
        )
    columns = columns or have[-1]
    chosen = [graph for graph in graphs if graph.columns in (None, columns)]
    widths = sorted({graph.width for graph in chosen if graph.columns == columns})
    return Chains(columns, {width: _chain(chosen, width, columns) for width in widths})


def narrowed(chains: Chains, widths: Sequence[int]) -> Chains:
    """The chains of some widths alone; ExportError where there is none of one."""
    missing = sorted(set(widths) - set(chains.parts))
    if missing:
        raise ExportError(
            f"there are no graphs of {missing[0]} rows over {chains.columns} columns",
            f"there are graphs of {', '.join(map(str, chains.parts))} rows",
        )
    return Chains(chains.columns, {width: chains.parts[width] for width in sorted(set(widths))})


def _refuse_layout(graph: SourceGraph) -> None:
    names = [*graph.inputs]
    native = [name for name in names if "nativekvcache" in name or name == "cache_index"]
    if native:
        raise ExportError(
            f"{graph.name} keeps its cache inside (input {native[0]}), which is another layout",
            "import an export whose cache is read as past_key_0_in and so on",
        )
    embeds = [name for name in names if name in ("input_embeds", "inputs_embeds")]
    if embeds:
        raise ExportError(
            f"{graph.name} takes embedded tokens ({embeds[0]}), not input_ids",
            "multimodal exports are not supported",
        )


def _chain(graphs: Sequence[SourceGraph], width: int, columns: int) -> list[SourceGraph]:
    """One width's parts: first the one that takes tokens, then each whose missing inputs are given."""
    left = [graph for graph in graphs if graph.width in (0, width)]
    chain: list[SourceGraph] = []
    given: set[str] = set()
    where = f"at {width} rows over {columns} columns"
    while "logits" not in given:
        ready = [graph for graph in left if _ready(graph, given, bool(chain))]
        if len(ready) != 1:
            names = ", ".join(graph.name for graph in ready or left)
            raise ExportError(
                f"{len(ready)} graphs could be part {len(chain) + 1} {where}: {names}",
                "leave in the folder the parts of one model, whose names for what passes between them agree",
            )
        chain.append(ready[0])
        left.remove(ready[0])
        given |= set(ready[0].outputs)
    return chain


def _ready(graph: SourceGraph, given: set[str], begun: bool) -> bool:
    passed = {name for name in graph.inputs if name not in _HOST and not name.startswith("past_")}
    return passed <= given and (bool(passed) if begun else "input_ids" in graph.inputs)


def check_shapes(chains: Chains, config: ModelConfig) -> None:
    """Raise ExportError unless every chain takes and gives what a model of `config` does."""
    for width, chain in chains.parts.items():
        wanted_in, wanted_out = _wanted(config, width, chains.columns)
        taken: set[str] = set()
        given: dict[str, Tensor] = {}
        for graph in chain:
            for name, tensor in graph.inputs.items():
                known = wanted_in.get(name)
                if known is None and name in given:
                    _match(graph, name, tensor, given[name].shape, given[name].dtype)
                    continue
                if known is None:
                    raise ExportError(f"{graph.name} takes {name}, which no part before it gives", _PARTS)
                _match(graph, name, tensor, known)
                taken.add(name)
            given |= graph.outputs
        missing = sorted((set(wanted_in) - taken) | (set(wanted_out) - set(given)))
        if missing:
            raise ExportError(
                f"the graphs of {width} rows have no {missing[0]}",
                _PARTS,
            )
        for name, shape in wanted_out.items():
            last = name == "logits" and given[name].shape == (1, 1, config.vocab)
            if not last:
                _match(chain[-1], name, given[name], shape)


def _wanted(
    config: ModelConfig, width: int, columns: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Inputs and outputs of a whole pass, and their shapes."""
    half, heads, dim, past = config.head_dim // 2, config.kv_heads, config.head_dim, columns - width
    inputs: dict[str, tuple[int, ...]] = {
        "input_ids": (1, width),
        "attention_mask": (1, 1, width, columns),
        "position_ids_cos": (1, 1, width, half),
        "position_ids_sin": (1, 1, width, half),
    }
    outputs: dict[str, tuple[int, ...]] = {"logits": (1, width, config.vocab)}
    for i in range(config.layers):
        inputs[f"past_key_{i}_in"] = (heads, 1, dim, past)
        inputs[f"past_value_{i}_in"] = (heads, 1, past, dim)
        outputs[f"past_key_{i}_out"] = (heads, 1, dim, width)
        outputs[f"past_value_{i}_out"] = (heads, 1, width, dim)
    return inputs, outputs


def _match(
    graph: SourceGraph, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: str | None = None
) -> None:
    if tensor.shape != shape or (dtype is not None and tensor.dtype != dtype):
        raise ExportError(
            f"{graph.name}: {name} is {tensor.dtype} {list(tensor.shape)}, expected {dtype or tensor.dtype} "
            f"{list(shape)}",
            _PARTS,
        )
    floats = dtype is None and name != "input_ids" and tensor.encoding is None
    if floats and tensor.dtype != "float32":
        raise ExportError(
            f"{graph.name}: {name} is {tensor.dtype}, which is neither float32 nor a quantised integer",
            QUANTISED,
        )
    if name == "input_ids" and tensor.dtype != "int32":
        raise ExportError(
            f"{graph.name}: input_ids is {tensor.dtype}, expected int32", "export it with tokens in int32"
        )


def kv_encodings(chains: Chains, layers: int) -> list[KvEncoding]:
    """How keys and values are stored, layer by layer; empty where they are float32.

    The cache is one for all widths, and what a pass gives is stored as it is: every graph must agree, inputs
    with outputs.
    """
    found: dict[str, Encoding | None] = {}
    for chain in chains.parts.values():
        for graph in chain:
            for name, tensor in [*graph.inputs.items(), *graph.outputs.items()]:
                kind = name.rpartition("_")[0]
                if not name.startswith("past_"):
                    continue
                if found.setdefault(kind, tensor.encoding) != tensor.encoding:
                    raise ExportError(
                        f"{graph.name}: {name} is quantised otherwise than {kind} elsewhere",
                        "a cache that all widths share has one scale for what is read and written",
                    )
    pairs = [(found[f"past_key_{i}"], found[f"past_value_{i}"]) for i in range(layers)]
    entries = [KvEncoding(key, value) for key, value in pairs if key is not None and value is not None]
    types = {encoding.dtype if encoding is not None else "float32" for pair in pairs for encoding in pair}
    if len(types) != 1:
        raise ExportError(
            f"keys and values are stored as {', '.join(sorted(types))}, expected one type",
            "export it with one type for all layers",
        )
    return entries
