"""The layouts a bundle's cache may have, and what must hold of a model in the vendor's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hexgraft.host.manifest import (
    JOINED_LAYOUT,
    KV_LAYOUT,
    VENDOR_LAYOUT,
    Encoding,
    GraphEntry,
    ModelEntry,
    VendorEntry,
)
from hexgraft.models.errors import BundleError

LAYOUTS = {
    KV_LAYOUT: "hexgraft (past C)",
    JOINED_LAYOUT: "hexgraft, joined (past C, rows behind it)",
    VENDOR_LAYOUT: "vendor (past CL - T)",
}
"""Layouts by the words the manifest has for them, and by those for people."""

INTEGERS = ("uint8", "int8", "uint16", "int16")
"""Types of quantised inputs and outputs."""

BORDER = ("attention_mask", "position_ids_cos", "position_ids_sin", "logits")
"""Inputs and outputs that may be quantised beside the cache."""

Refuse = Callable[[str], None]


def is_vendor(model: ModelEntry) -> bool:
    return model.kv_layout == VENDOR_LAYOUT


def is_joined(model: ModelEntry) -> bool:
    """Whether the rows of a pass lie behind the cache's slots, as fused attention leaves them."""
    return model.kv_layout == JOINED_LAYOUT


def vendor_of(graph: GraphEntry) -> VendorEntry:
    """What a graph in the vendor's layout says of itself; BundleError if nothing."""
    if graph.vendor is None:
        raise BundleError(f"{graph.file} does not say which part of a pass it is", "import it again")
    return graph.vendor


def last_widths(model: ModelEntry, provider: str) -> tuple[int, ...]:
    """Widths, ascending, whose graphs for the CPU ("cpu") or the NPU give their last row's logits alone."""
    return tuple(
        sorted(
            {
                graph.width or 0
                for graph in model.graphs
                if graph.vendor is not None
                and graph.vendor.last_logits
                and (graph.provider == "cpu") == (provider == "cpu")
            }
        )
    )


def check_layout(model: ModelEntry, refuse: Refuse) -> None:
    """Call `refuse` with what is wrong about a model's cache layout and the graphs in it."""
    if model.kv_layout not in LAYOUTS:
        refuse(f"has the unknown cache layout {model.kv_layout!r}")
    if not is_vendor(model):
        if model.kv_dtype != "float32" or model.kv_encodings:
            refuse(f"has the unknown cache type {model.kv_dtype!r}")
        if any(graph.vendor is not None for graph in model.graphs):
            refuse("has graphs of another cache layout")
        if is_joined(model) and any(graph.provider != "cpu" for graph in model.graphs):
            refuse("has graphs of the NPU in a cache layout of the CPU's")
        return
    if model.window is not None or model.local_rope is not None or model.features or model.capacities:
        refuse(
            "has windows, hidden states or several capacities, which graphs of the vendor's layout have not"
        )
    _check_cache(model, refuse)
    for provider in dict.fromkeys(graph.provider for graph in model.graphs):
        _check_graphs(model, provider, refuse)


def _check_cache(model: ModelEntry, refuse: Refuse) -> None:
    if model.kv_dtype == "float32":
        if model.kv_encodings:
            refuse("has encodings of a cache that is not quantised")
        return
    if model.kv_dtype not in INTEGERS:
        refuse(f"has the unknown cache type {model.kv_dtype!r}")
    if len(model.kv_encodings) != model.layers:
        refuse(f"has cache encodings of {len(model.kv_encodings)} layers, it has {model.layers}")
    for i, entry in enumerate(model.kv_encodings):
        for encoding in (entry.key, entry.value):
            if encoding.dtype != model.kv_dtype or not is_sound(encoding):
                refuse(f"has an impossible cache encoding in layer {i}")


def _check_graphs(model: ModelEntry, provider: str, refuse: Refuse) -> None:
    """One provider's graphs: a whole chain a width, CL columns in all, encodings that agree."""
    chains: dict[int, list[GraphEntry]] = {}
    columns = set()
    for graph in model.graphs:
        if graph.provider != provider:
            continue
        if not graph.width or not graph.capacity or graph.vendor is None:
            refuse(f"names {graph.file}, which has no fixed size or does not say which part it is")
            continue
        chains.setdefault(graph.width, []).append(graph)
        columns.add(graph.width + graph.capacity)
    if len(columns) != 1 or sorted(chains) != model.widths:
        refuse(f"has {provider} graphs of the widths {sorted(chains)} over {sorted(columns)} columns")
    if columns and model.context != max(columns) - max(chains):
        refuse(f"has {model.context} slots, its widest graph addresses {max(columns) - max(chains)}")
    for width, chain in chains.items():
        entries = [vendor_of(graph) for graph in chain]
        if sorted(entry.part for entry in entries) != list(range(entries[0].parts)):
            refuse(f"has not every part of the graph of {width} rows, once each")
        for name in BORDER:
            found = {entry.encodings[name] for entry in entries if name in entry.encodings}
            if len(found) > 1 or not all(is_sound(encoding) for encoding in found):
                refuse(f"has an impossible encoding of {name} at {width} rows")
        if any(set(entry.encodings) - set(BORDER) for entry in entries):
            refuse(f"has encodings of unknown inputs at {width} rows")


def is_sound(encoding: Encoding) -> bool:
    """Whether a scale is a positive number and zero a value of the type."""
    if encoding.dtype not in INTEGERS:
        return False
    limits = np.iinfo(encoding.dtype)
    return 0 < encoding.scale < 1e6 and limits.min <= encoding.zero <= limits.max
