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
from hexgraft.host.session import CacheRows, Floats, Ints, Session, prefill
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import DecodeError, HexgraftError

FORMAT = "1"
"""Readers accept exactly this version."""
_HINT = "bake it again: hexgraft bake BUNDLE --system FILE -o PREFIX"
_PROBES = ("a", "The", "1", " x", "\n", "\n\n", ".", "é", "/", '"', "<")
"""Messages a prompt may go on with: what all of them share is what the system message alone decides."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cache was computed, as far as its numbers depend on it: the bundle's digest, the backend and
    its provider, the graph's precision, and `--widths`, "any" where passes are not padded."""

    bundle: str
    provider: str
    precision: str
    widths: str

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        backend: str,
        widths: str | None,
        provider: str = "cpu",
        precision: str | None = None,
    ) -> Place:
        """Of the target, by the names `--backend`, `--widths`, `--provider` and `--precision` have them."""
        away = backend in ("runner", "device")
        precision = precision or bundle.graph("target", provider if away else backend).precision
        return cls(bundle.digest, f"{backend} {provider}" if away else backend, precision, widths or "any")


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens and their cache rows. `system` is the system message they come from."""

    tokens: tuple[int, ...]
    rows: CacheRows
    system: str
    place: Place


def system_tokens(codec: TextCodec, system: str) -> list[int]:
    """The tokens every conversation with this system message begins with."""
    shared: list[int] | None = None
    for probe in _PROBES:
        tokens = codec.encode_chat(
            [{"role": "system", "content": system}, {"role": "user", "content": probe}]
        )
        shared = tokens if shared is None else shared[: common_length(shared, tokens)]
    if not shared:
        raise DecodeError(
            "the model's chat template begins differently with every message: nothing can be baked"
        )
    return shared


def bake(session: Session, tokens: Sequence[int], system: str, place: Place) -> Prefix:
    """Prefill `tokens` and keep their cache rows."""
    capacity = session.spec.capacity
    if len(tokens) >= capacity:
        raise DecodeError(
            f"the system message has {len(tokens)} tokens and the context holds {capacity}: no room is left",
            "shorten it, or export with a larger --context",
        )
    session.reset()
    for _ in prefill(session, tokens, 0, len(tokens)):
        pass
    return Prefix(tuple(tokens), session.save(len(tokens)), system, place)


def write_prefix(path: Path, prefix: Prefix) -> None:
    """Write a safetensors file that appears at `path` only when it is whole."""
    tensors = {
        "tokens": np.array(prefix.tokens, np.int32),
        "keys": np.ascontiguousarray(prefix.rows.keys),
        "values": np.ascontiguousarray(prefix.rows.values),
    }
    place = prefix.place
    metadata = {
        "format": FORMAT,
        "bundle": place.bundle,
        "provider": place.provider,
        "precision": place.precision,
        "widths": place.widths,
        "system": prefix.system,
    }
    write_whole(path, save(tensors, metadata))


def read_prefix(path: Path, bundle: Bundle, place: Place) -> Prefix:
    """Read a prefix that was baked with this bundle at this place; anything else is refused in words."""
    if not path.is_file():
        raise HexgraftError(f"no baked prefix at {path}", _HINT)
    try:
        with safe_open(path, framework="numpy") as file:
            opened: Any = file
            metadata: dict[str, str] = opened.metadata() or {}
            _check_place(path, metadata, place)
            names = set(opened.keys())
            if names != {"tokens", "keys", "values"}:
                raise HexgraftError(f"{path} holds {sorted(names)}, not tokens, keys and values", _HINT)
            tokens, keys, values = (opened.get_tensor(name) for name in ("tokens", "keys", "values"))
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise HexgraftError(f"{path} is not a baked prefix, or is damaged: {error}", _HINT) from error
    _check_tensors(path, bundle, tokens, keys, values)
    return Prefix(tuple(tokens.tolist()), CacheRows(keys, values), metadata.get("system", ""), place)


def restore(decoder: Decoder, prefix: Prefix, prompt: Sequence[int]) -> None:
    """Put a prefix into the session's cache; `decoder.begin(prompt, reuse=True)` then counts on it.

    Raises DecodeError unless the prompt begins with the prefix.
    """
    if decoder.drafter.reader is not None:
        raise DecodeError(
            "a baked prefix holds nothing for a draft head",
            "leave out --baked, or draft with --draft lookup",
        )
    same = common_length(prefix.tokens, prompt)
    if same < len(prefix.tokens):
        raise DecodeError(
            f"the prompt does not begin with the baked prefix: they part at its token {same}",
            "leave out --raw and --system, or bake a prefix of this system message",
        )
    decoder.session.reset()
    decoder.session.restore(prefix.rows)
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
    theirs = metadata.get("widths", "unknown")
    if theirs != place.widths:
        with_theirs = f"--widths {theirs}" if theirs != "any" else "no --widths"
        raise HexgraftError(
            f"{path} was baked with other pass widths: {theirs}, not {place.widths}",
            f"give {with_theirs} here too, or {_HINT}",
        )


def _check_tensors(path: Path, bundle: Bundle, tokens: Ints, keys: Floats, values: Floats) -> None:
    model = bundle.target
    count = tokens.size
    wanted = {
        "tokens": (tokens, np.int32, (count,)),
        "keys": (keys, np.float32, (model.layers, model.kv_heads, model.head_dim, count)),
        "values": (values, np.float32, (model.layers, model.kv_heads, count, model.head_dim)),
    }
    for name, (array, kind, shape) in wanted.items():
        if array.dtype != kind or array.shape != shape:
            raise HexgraftError(
                f"{path}: {name} are {array.dtype} {list(array.shape)}, expected {np.dtype(kind)} "
                f"{list(shape)}",
                _HINT,
            )
    if not 1 <= count < model.context or tokens.min() < 0 or tokens.max() >= model.vocab:
        raise HexgraftError(f"{path} has tokens that this bundle cannot have", _HINT)
    if not np.isfinite(keys).all() or not np.isfinite(values).all():
        raise HexgraftError(f"{path} is damaged: it holds numbers that are not finite", _HINT)
