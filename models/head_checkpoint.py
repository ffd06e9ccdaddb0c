"""Draft heads on disk, in the layouts the authors of EAGLE publish: a config.json and a file of tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.blocks import require_finite, row_ranges
from hexgraft.models.checkpoint import Checkpoint
from hexgraft.models.errors import CheckpointError, DamagedError, UnsupportedError
from hexgraft.models.features import eagle3_features, eagle_features
from hexgraft.models.file_names import clip, readable_name
from hexgraft.models.head_config import EAGLE, EAGLE3, HeadConfig, head_shapes
from hexgraft.models.head_tokens import read_tokens
from hexgraft.models.hf_checkpoint import license_of, to_float32
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.hf_names import LAYER_PARTS
from hexgraft.models.hf_tensors import DTYPES, INDEX, SINGLE, HfTensors
from hexgraft.models.json_file import Fields, read_json
from hexgraft.models.shipped_heads import shipped_head, shipped_origin
from hexgraft.models.tensor_files import TensorFiles
from hexgraft.models.torch_file import BIN, TorchTensors

_PARTS = LAYER_PARTS | {"hidden_norm": "hidden_norm.weight"}
_WHOLE = {
    "fc": "fc.weight",
    "fc_bias": "fc.bias",
    "norm": "norm.weight",
    "head": "lm_head.weight",
    "embed": "embed_tokens.weight",
}
_TABLES = ("d2t", "t2d")
_UNSUPPORTED = ("norm_before_residual", "norm_before_fc", "speculators_model_type")
"""Switches of other trainers that change what the same tensors mean."""


class TargetSizes(Protocol):
    """What of a target's config a head has to fit."""

    @property
    def vocab(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    @property
    def logit_scale(self) -> float: ...
    @property
    def final_softcap(self) -> float | None: ...


class HeadTarget(Protocol):
    """What a head needs of its target: a `Checkpoint`, or whatever else knows its sizes and lends its
    matrices, as `Checkpoint.blocks`."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> TargetSizes: ...
    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]: ...


class HeadCheckpoint:
    """A head for one target, checked at opening from its headers: presence, shape and type of every tensor.

    `tokens` are the ids it can propose, ascending, None for the whole vocabulary; `lent` names those of
    "embed" and "head" that it does not bring and takes from the target as they are. A head of a reduced
    vocabulary without `lm_head.weight` has the target's rows of its tokens. Raises CheckpointError for
    whatever is missing, damaged, unsupported, or made for another target.
    """

    path: Path
    config: HeadConfig
    name: str
    origin: str
    license: str | None
    source_format: str
    notes: list[str]

    def __init__(self, path: Path, target: HeadTarget) -> None:
        self.path, self._target = path, target
        self.notes = []
        self._tensors = head_tensors(path)
        self._names = _plain_names(self._tensors.files, path)
        values = read_json(path / "config.json")
        self._check_vocab(values)
        self.tokens, self._order = self._read_tokens(values)
        self.config = self._with_logits(self._config(values))
        self._shapes = head_shapes(self.config)
        self.lent = self._lent()
        self.source_format = f"{self.config.kind} head {self._check_tensors()}"
        if "embed" in self._names and self._brings_the_target_s():
            self.lent |= {"embed"}
            self.notes.append("its embedding is the target's, and is not stored again")
        self.name = self.origin = readable_name(path.resolve().name)
        self.license = license_of(path / "README.md")

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Row blocks of the tensor with the canonical name `name`, float32, as `Checkpoint.blocks`."""
        if name in self.lent:
            tied = name == "head" and self._target.config.tied
            yield from self._target.blocks("embed" if tied else name)
            return
        if name == "head" and name not in self._names:
            yield from self._target_rows()
            return
        tensor, shape = self._names[name], self._shapes[name]
        for start, stop in row_ranges(shape):
            if name == "head" and self._order is not None:
                rows = np.concatenate(
                    [self._tensors.read(tensor, slice(i, i + 1)) for i in self._order[start:stop]]
                )
            else:
                rows = self._tensors.read(tensor, slice(start, stop))
            yield require_finite(to_float32(rows), tensor, self.path / self._tensors.files[tensor])

    def brings(self, name: str) -> bool:
        """Whether a tensor is in the head's own file and not the target's again."""
        return name in self._names and name not in self.lent

    def _brings_the_target_s(self) -> bool:
        """Whether the embedding it brings is the target's to the last bit, as many published ones are."""
        if self._shapes["embed"] != (self._target.config.vocab, self._target.config.hidden):
            return False
        ours, theirs = self.blocks("embed"), self._target.blocks("embed")
        return all(np.array_equal(a, b) for a, b in zip_longest(ours, theirs))

    def _target_rows(self) -> Iterator[NDArray[np.float32]]:
        """The target's output rows of the tokens this head proposes."""
        assert self.tokens is not None  # a whole matrix is lent
        first = 0
        for block in self._target.blocks("embed" if self._target.config.tied else "head"):
            low, high = np.searchsorted(self.tokens, (first, first + len(block)))
            if low < high:
                yield block[self.tokens[low:high] - first]
            first += len(block)

    def _read_tokens(
        self, values: dict[str, Any]
    ) -> tuple[NDArray[np.int32] | None, NDArray[np.intp] | None]:
        rows = Fields(values, str(self.path / "config.json")).maybe_integer("draft_vocab_size")
        vocab = self._target.config.vocab
        if "d2t" in self._tensors.files:
            return read_tokens(self._tensors, self.path, vocab, rows)
        if rows not in (None, vocab):
            raise CheckpointError(
                f"{self.path} proposes {rows} of the target's {vocab} tokens and has no d2t that says which",
                "download the complete folder",
            )
        return None, None

    def _check_vocab(self, values: dict[str, Any]) -> None:
        made = Fields(values, str(self.path / "config.json")).integer("vocab_size")
        if made != self._target.config.vocab:
            raise CheckpointError(
                f"{self.path} was made for a target of {made} tokens, this one has "
                f"{self._target.config.vocab}",
                f"take a head of {self._target.name}",
            )

    def _config(self, values: dict[str, Any]) -> HeadConfig:
        where, target = str(self.path / "config.json"), self._target.config
        for switch in _UNSUPPORTED:
            if values.get(switch):
                raise CheckpointError(
                    f"{where} sets {switch}, which is not in the layout of EAGLE's authors",
                    "convert the head to that layout, or take one of theirs",
                )
        layer = config_from_hf(values | {"model_type": "llama", "attention_bias": False}, where)
        layer = replace(layer, family="llama", tied=False, qkv_bias="layers.0.q_bias" in self._names)
        rows = layer.vocab if self.tokens is None else len(self.tokens)
        if "layers.0.hidden_norm" not in self._names:
            features = eagle_features(target.layers)
            return HeadConfig(EAGLE, layer, rows, features, target.hidden, "fc_bias" in self._names)
        if layer.layers != 1:
            raise UnsupportedError(f"{where}: an EAGLE-3 head has one layer, this one {layer.layers}")
        features = eagle3_features(target.layers)
        _check_layers(values, features, where)
        return HeadConfig(EAGLE3, layer, rows, features, target.hidden)

    def _with_logits(self, config: HeadConfig) -> HeadConfig:
        """The state of an EAGLE-1 head is the target's own, read by the target's matrix: what the target does
        to its logits then holds for the head's. EAGLE-3 heads were trained on the product itself, and their
        norm has whatever scale there is."""
        if config.kind != EAGLE or "head" in self._names:
            return config
        target = self._target.config
        layer = replace(config.layer, logit_scale=target.logit_scale, final_softcap=target.final_softcap)
        return replace(config, layer=layer)

    def _lent(self) -> frozenset[str]:
        lent = {"embed"} - self._names.keys()
        if "head" not in self._names and self.tokens is None:
            lent.add("head")
        width, target = self.config.layer.hidden, self._target.config.hidden
        reads_target = self.config.kind == EAGLE or lent or "head" not in self._names
        if reads_target and width != target:
            raise CheckpointError(
                f"{self.path} is {width} numbers wide, the target {target}",
                f"take a head of {self._target.name}",
            )
        return frozenset(lent)

    def _check_tensors(self) -> str:
        """Every tensor of the config is there in its shape, and none besides; returns the type of `fc`."""
        wanted = {name for name in self._shapes if name not in self.lent}
        if self.tokens is not None:
            wanted -= {"head"} - self._names.keys()
        extra = sorted(self._names.keys() - wanted)
        if extra:
            raise CheckpointError(
                f"tensor {clip(self._names[extra[0]])} of {self.path} is in no {self.config.kind} head",
                "the head is of another layout than EAGLE's authors publish",
            )
        for name in sorted(wanted):
            if name not in self._names:
                raise CheckpointError(f"{self.path} has no tensor for {name}", "download the complete folder")
            kind, shape = self._tensors.header(self._names[name])
            if shape != self._shapes[name]:
                raise DamagedError(
                    f"tensor {self._names[name]} of {self.path} has shape {list(shape)}, a head of "
                    f"{self._target.name} has {list(self._shapes[name])}"
                )
            if kind not in DTYPES:
                raise CheckpointError(
                    f"tensor {self._names[name]} of {self.path} is of type {kind}, which is not supported",
                    f"supported: {', '.join(DTYPES.values())}",
                )
        return DTYPES[self._tensors.header(self._names["fc"])[0]]


def is_head(path: Path) -> bool:
    """Whether a folder holds a draft head: it mixes features in with a matrix `fc`, and is no model alone."""
    if not (path / "config.json").is_file():
        return False
    if not any((path / name).is_file() for name in (INDEX, SINGLE, BIN)):
        return False
    return "fc.weight" in {name.removeprefix("model.") for name in head_tensors(path).files}


def head_tensors(path: Path) -> TensorFiles:
    """A folder's tensors, out of safetensors where there are any."""
    if not (path / INDEX).is_file() and not (path / SINGLE).is_file() and (path / BIN).is_file():
        return TorchTensors(path)
    return HfTensors(path)


def _plain_names(tensors: Collection[str], path: Path) -> dict[str, str]:
    """Canonical name to the file's; heads come with or without `model.`, and EAGLE-3's layer goes by two."""
    parts = {theirs: ours for ours, theirs in _PARTS.items()}
    whole = {theirs: ours for ours, theirs in _WHOLE.items()}
    names: dict[str, str] = {}
    for tensor in tensors:
        plain = tensor.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
        if plain in _TABLES or plain.endswith("rotary_emb.inv_freq"):
            continue
        found = re.fullmatch(r"layers\.(\d{1,3})\.(.+)", plain)
        name = whole.get(plain) if found is None else None
        if found is not None and found[2] in parts:
            name = f"layers.{found[1]}.{parts[found[2]]}"
        if name is None or name in names:
            raise CheckpointError(
                f"tensor {clip(tensor)} of {path} is not part of a draft head",
                "the head is of another layout than EAGLE's authors publish",
            )
        names[name] = tensor
    return names


def _check_layers(values: dict[str, Any], features: tuple[int, ...], where: str) -> None:
    """Where a config names the layers it reads, they must be the usual ones: counted from 0 or from 1, which
    readers of such configs disagree about."""
    nested = values.get("eagle_config")
    inner = nested if isinstance(nested, dict) else {}
    named = values.get("eagle_aux_hidden_state_layer_ids") or inner.get("eagle_aux_hidden_state_layer_ids")
    if named and named not in ([*features], [layer - 1 for layer in features]):
        raise UnsupportedError(
            f"{where}: the head reads the target's layers {str(named)[:40]}, supported are {list(features)}"
        )


def open_draft(path: Path, target: HeadTarget) -> Checkpoint | HeadCheckpoint:
    """A draft for a target: a model of its own, or a head."""
    from hexgraft.models.checkpoint import open_checkpoint

    return open_head(path, target) or open_checkpoint(path)


def open_head(path: Path, target: HeadTarget) -> HeadCheckpoint | None:
    """A head for a target: a folder, one that comes with hexgraft by its name, or an id on the hub; None
    where there is no head."""
    from hexgraft.models.hub import download, is_hub_id

    shipped = shipped_head(str(path)) if not path.exists() else None
    if shipped is not None:
        head = HeadCheckpoint(shipped, target)
        head.origin = shipped_origin(shipped.name)
        return head
    if path.is_dir() and is_head(path):
        return HeadCheckpoint(path, target)
    if not path.exists() and is_hub_id(path):
        found = download(path)
        if found.path.is_dir() and not any((found.path / name).is_file() for name in (INDEX, SINGLE)):
            found = download(path, BIN)
        if found.path.is_dir() and is_head(found.path):
            head = HeadCheckpoint(found.path, target)
            head.name, head.origin = found.name, found.origin
            return head
    return None
