"""A baked prefix: the cache of a system message, in a file that later runs load instead of prefilling it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hexgraft.host.atomic_file import write_whole
from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import Decoder, common_length
from hexgraft.host.drafters.features import FeatureReader, HeadCache
from hexgraft.host.session import CacheRows, Rows, Session, prefill
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import DecodeError, HexgraftError, mistyped

FORMAT = "2"
"""Readers accept exactly this version."""
_BAKE = "hexgraft bake BUNDLE --system TEXT -o PREFIX"
_HINT = f"bake it again: {_BAKE}"
_HEAD = {"head_keys", "head_values", "head_features"}
_PROBES = ("a", "The", "1", " x", "\n", "\n\n", ".", "é", "/", '"', "<")
"""Messages a prompt may go on with: what all of them share is what the system message alone decides."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cache was computed, as far as its numbers depend on it: the bundle's digest, the backend and
    its provider, the graph's precision, `--widths`, "any" where passes are not padded, `--threads`, by which
    a runtime cuts its sums, and on an NPU the chip whose build runs."""

    bundle: str
    provider: str
    precision: str
    widths: str
    threads: int = 0
    soc: str = ""

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        backend: str,
        widths: str | None,
        provider: str = "cpu",
        precision: str | None = None,
        threads: int = 0,
        soc: str | None = None,
    ) -> Place:
        """Of the target, by the names `--backend`, `--widths`, `--provider`, `--precision`, `--threads` and
        `--soc` have them; of several builds for an NPU the first that fits, as sessions choose."""
        name = f"{backend} {provider}" if backend in ("runner", "device") else backend
        builds = builds_for(bundle, backend, provider, soc, precision)
        if builds:
            soc, precision = builds[0]
        precision = precision or bundle.graph("target", _graphs_for(backend, provider)[0]).precision
        return cls(bundle.digest, name, precision, widths or "any", threads, soc or "")


def builds_for(
    bundle: Bundle, backend: str, provider: str, soc: str | None, precision: str | None
) -> list[tuple[str, str]]:
    """Chip and precision of the builds for an NPU that a backend may run, of those asked for."""
    kinds = _graphs_for(backend, provider)
    found = [
        (graph.htp.soc, graph.precision)
        for graph in bundle.target.graphs
        if graph.provider in kinds
        and graph.htp is not None
        and soc in (None, graph.htp.soc)
        and precision in (None, graph.precision)
    ]
    return list(dict.fromkeys(found))


def _graphs_for(backend: str, provider: str) -> tuple[str, ...]:
    """The kinds of graphs that a backend may load: phones the NPU's own, and the emulator's where they are
    loopback phones."""
    if backend in ("runner", "device") and provider == "htp":
        return ("htp", "htp-sim") if backend == "device" else ("htp-sim",)
    return (provider,) if backend in ("runner", "device") else (backend,)


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens and their cache rows, and those of a draft head, if the bundle has one. `system` is the system
    message they come from."""

    tokens: tuple[int, ...]
    rows: CacheRows
    system: str
    place: Place
    head: HeadCache | None = None


def system_tokens(codec: TextCodec, system: str) -> list[int]:
    """The tokens every conversation with this system message begins with."""
    shared: list[int] | None = None
    for probe in _PROBES:
        tokens = _beginning(codec, system, probe)
        shared = tokens if shared is None else shared[: common_length(shared, tokens)]
    if not shared:
        raise DecodeError(
            "the model's chat template begins differently with every message: nothing can be baked",
            "give the system message to every run: --system TEXT",
        )
    return shared


def _beginning(codec: TextCodec, system: str, message: str) -> list[int]:
    return codec.encode_chat([{"role": "system", "content": system}, {"role": "user", "content": message}])


def check_system(codec: TextCodec, system: str, capacity: int) -> None:
    """Raises DecodeError for a system message that leaves no room for the shortest message in a context of
    `capacity`."""
    _check_room(_beginning(codec, system, _PROBES[0]), capacity)


def _check_room(tokens: Sequence[int], capacity: int) -> None:
    if len(tokens) >= capacity:
        raise DecodeError(
            f"the system message has {len(tokens)} tokens and the context holds {capacity}: no room is left",
            "shorten it, or export with a larger --context",
        )


def bake(
    session: Session,
    tokens: Sequence[int],
    system: str,
    place: Place,
    reader: FeatureReader | None = None,
) -> Prefix:
    """Prefill `tokens` and keep their cache rows; `reader` is the bundle's draft head, which reads along."""
    _check_room(tokens, session.spec.capacity)
    session.reset()
    if reader is not None:
        reader.align(0)

    def watch(start: int, rows: Rows) -> None:
        if reader is not None:
            reader.read(tokens, start, rows.hiddens())

    for _ in prefill(session, tokens, 0, len(tokens), watch):
        pass
    head = reader.save() if reader is not None else None
    return Prefix(tuple(tokens), session.save(len(tokens)), system, place, head)


def write_prefix(path: Path, prefix: Prefix) -> None:
    """Write a safetensors file that appears at `path` only when it is whole."""
    tensors = {
        "tokens": np.array(prefix.tokens, np.int32),
        "keys": np.ascontiguousarray(prefix.rows.keys),
        "values": np.ascontiguousarray(prefix.rows.values),
    }
    if prefix.head is not None:
        tensors |= {
            "head_keys": np.ascontiguousarray(prefix.head.rows.keys),
            "head_values": np.ascontiguousarray(prefix.head.rows.values),
            "head_features": prefix.head.features,
        }
    place = prefix.place
    metadata = {
        "format": FORMAT,
        "bundle": place.bundle,
        "provider": place.provider,
        "precision": place.precision,
        "widths": place.widths,
        "threads": str(place.threads),
        "soc": place.soc,
        "system": prefix.system,
    }
    write_whole(path, save(tensors, metadata))


def read_prefix(path: Path, bundle: Bundle, place: Place) -> Prefix:
    """Read a prefix that was baked with this bundle at this place; anything else is refused in words."""
    if not path.is_file():
        raise mistyped(HexgraftError(f"no baked prefix at {path}", f"bake one: {_BAKE}"))
    try:
        with safe_open(path, framework="numpy") as file:
            opened: Any = file
            metadata: dict[str, str] = opened.metadata() or {}
            _check_place(path, metadata, place)
            wanted = {"tokens", "keys", "values"} | (_HEAD if has_head(bundle) else set())
            if set(opened.keys()) != wanted:
                also = " and those of the draft head" if has_head(bundle) else ""
                found = sorted(opened.keys())
                raise HexgraftError(f"{path} holds {found}, not tokens, keys and values{also}", _HINT)
            tensors = {name: opened.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise HexgraftError(f"{path} is not a baked prefix, or is damaged: {error}", _HINT) from error
    _check_tensors(path, bundle, tensors)
    rows, head = CacheRows(tensors["keys"], tensors["values"]), None
    if has_head(bundle):
        own = CacheRows(tensors["head_keys"], tensors["head_values"])
        head = HeadCache(own, tensors["head_features"])
    return Prefix(tuple(tensors["tokens"].tolist()), rows, metadata.get("system", ""), place, head)


def has_head(bundle: Bundle) -> bool:
    """Whether the bundle's draft is a head, whose cache belongs into a prefix too."""
    return bundle.draft is not None and bundle.draft.head is not None


def restore(decoder: Decoder, prefix: Prefix, prompt: Sequence[int]) -> None:
    """Put a prefix into the session's cache; `decoder.begin(prompt, reuse=True)` then counts on it.

    Raises DecodeError unless the prompt begins with the prefix.
    """
    same = common_length(prefix.tokens, prompt)
    if same < len(prefix.tokens):
        raise DecodeError(
            f"the prompt does not begin with the baked prefix: they part at its token {same}",
            "leave out --raw and --system, or bake a prefix of this system message",
        )
    decoder.session.reset()
    decoder.session.restore(prefix.rows)
    if decoder.drafter.reader is not None and prefix.head is not None:
        decoder.drafter.reader.restore(prefix.head)
    decoder.adopt(prefix.tokens)


def _check_place(path: Path, metadata: dict[str, str], place: Place) -> None:
    if metadata.get("format") != FORMAT:
        raise HexgraftError(
            f"{path} has prefix format {metadata.get('format', 'unknown')}, this hexgraft reads {FORMAT}",
            _HINT,
        )
    for name, what in (("bundle", "bundle"), ("provider", "backend"), ("precision", "precision")):
        if metadata.get(name) != getattr(place, name):
            ours, theirs = (str(text)[:16] for text in (getattr(place, name), metadata.get(name)))
            raise HexgraftError(f"{path} was baked with another {what}: {theirs}, not {ours}", _HINT)
    chip = metadata.get("soc", "")  # of old, files did not say
    if chip != place.soc:
        raise HexgraftError(
            f"{path} was baked with another chip's build: {chip or 'unknown'}, not {place.soc}",
            f"give --soc {chip} here too, or {_HINT}" if chip else _HINT,
        )
    theirs = metadata.get("widths", "unknown")
    if theirs != place.widths:
        with_theirs = f"--widths {theirs}" if theirs != "any" else "no --widths"
        raise HexgraftError(
            f"{path} was baked with other pass widths: {theirs}, not {place.widths}",
            f"give {with_theirs} here too, or {_HINT}",
        )
    threads = metadata.get("threads", "unknown")
    if threads != str(place.threads):
        raise HexgraftError(
            f"{path} was baked with --threads {threads}, not {place.threads}",
            f"give --threads {threads} here too, or {_HINT}",
        )


def _check_tensors(path: Path, bundle: Bundle, tensors: dict[str, Any]) -> None:
    model, tokens = bundle.target, tensors["tokens"]
    count = tokens.size
    wanted: dict[str, tuple[type, tuple[int, ...]]] = {
        "tokens": (np.int32, (count,)),
        "keys": (np.float32, (model.layers, model.kv_heads, model.head_dim, count)),
        "values": (np.float32, (model.layers, model.kv_heads, count, model.head_dim)),
    }
    if bundle.draft is not None and has_head(bundle):
        head, rows = bundle.draft, tensors["head_keys"].shape[-1]
        behind = 0 if count > head.context else max(0, count - rows)
        wanted |= {
            "head_keys": (np.float32, (head.layers, head.kv_heads, head.head_dim, rows)),
            "head_values": (np.float32, (head.layers, head.kv_heads, rows, head.head_dim)),
            "head_features": (np.float32, (behind, model.hidden_size)),
        }
    for name, (kind, shape) in wanted.items():
        array = tensors[name]
        if array.dtype != kind or array.shape != shape:
            raise HexgraftError(
                f"{path}: {name} are {array.dtype} {list(array.shape)}, expected {np.dtype(kind)} "
                f"{list(shape)}",
                _HINT,
            )
    if not 1 <= count < model.context or tokens.min() < 0 or tokens.max() >= model.vocab:
        raise HexgraftError(f"{path} has tokens that this bundle cannot have", _HINT)
    if not all(np.isfinite(tensors[name]).all() for name in wanted):
        raise HexgraftError(f"{path} is damaged: it holds numbers that are not finite", _HINT)
