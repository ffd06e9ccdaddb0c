"""Reads a bundle and refuses one that is altered, incomplete, of another version, or inconsistent in
itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec
from tokenizers import Tokenizer

from hexgraft.host.layout import check_layout, is_vendor
from hexgraft.host.manifest import FORMAT, MANIFEST, GraphEntry, Manifest, ModelEntry
from hexgraft.host.manifest_head import check_head
from hexgraft.models.errors import BundleError, CheckpointError, mistyped
from hexgraft.models.file_names import clip, is_inner_path
from hexgraft.models.tokenizer import load_tokenizer, vocab_hash

EXPORT_HINT = "make it again with `hexgraft export`"
_MANIFEST_LIMIT = 16 << 20
_LARGEST = 1 << 24
"""Beyond any size of a model; buffers are allocated by these numbers."""


class _Version(msgspec.Struct):
    format: int


class Bundle:
    """A bundle on disk whose manifest has been checked. `verify` also checks every file's content."""

    def __init__(self, path: Path, manifest: Manifest, digest: str) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest
        """sha256 of bundle.json, which names every other file by hash: the identity of the whole bundle."""

    @property
    def target(self) -> ModelEntry:
        return self.manifest.target

    @property
    def draft(self) -> ModelEntry | None:
        return self.manifest.draft

    def model(self, role: str) -> ModelEntry:
        """The entry of "target" or "draft"; BundleError if this bundle has no draft model."""
        if role == "target":
            return self.manifest.target
        if self.manifest.draft is None:
            raise mistyped(
                BundleError(
                    f"{self.path} has no draft model",
                    "use --draft lookup, or export again with `--draft CHECKPOINT`",
                )
            )
        return self.manifest.draft

    def file(self, name: str) -> Path:
        return self.path / name

    def graph(self, role: str, provider: str) -> GraphEntry:
        """The first graph of a model for a provider."""
        for graph in self.model(role).graphs:
            if graph.provider == provider:
                return graph
        hint = "export it with `--target htp --soc SOC`" if provider != "cpu" else EXPORT_HINT
        raise BundleError(f"{self.path} has no {provider} graph of the {role} model", hint)

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Check size and sha256 of every file, and that the tokenizer has the vocabulary the manifest says;
        raises BundleError naming the first that differs."""
        for name, entry in self.manifest.files.items():
            digest = hashlib.sha256()
            with self.file(name).open("rb") as stream:
                while block := stream.read(8 << 20):
                    digest.update(block)
                    if progress:
                        progress(len(block))
            if digest.hexdigest() != entry.sha256:
                raise BundleError(
                    f"{self.file(name)} is not the file that was exported: sha256 differs", EXPORT_HINT
                )
        tokenizer = self.file(self.manifest.tokenizer.file)
        if vocab_hash(read_tokenizer(tokenizer)) != self.manifest.tokenizer.vocab_hash:
            raise BundleError(
                f"{tokenizer} has not the vocabulary that the manifest was made of", EXPORT_HINT
            )


def read_tokenizer(path: Path) -> Tokenizer:
    """A bundle's tokenizer; raises BundleError for a file that is none."""
    try:
        return load_tokenizer(read_part(path), str(path), EXPORT_HINT)
    except CheckpointError as error:
        raise BundleError(error.message, error.hint) from error


def read_part(path: Path) -> str:
    """The text of one of a bundle's files; raises BundleError where it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BundleError(f"{path} is not UTF-8 text: {error.reason}", EXPORT_HINT) from error


def open_bundle(path: Path) -> Bundle:
    """Read and check a bundle's manifest and the presence and size of its files (not their content:
    `verify`)."""
    manifest_path = path / MANIFEST
    if not path.is_dir() or not manifest_path.is_file():
        hint = "give the folder that `hexgraft export` wrote"
        if path.suffix.lower() == ".gguf" and path.is_file():
            hint = f"export it first: `hexgraft export {path.name} -o BUNDLE`"
        raise mistyped(BundleError(f"no bundle at {path}", hint))
    if manifest_path.stat().st_size > _MANIFEST_LIMIT:
        raise BundleError(f"{manifest_path} is larger than any manifest", EXPORT_HINT)
    raw = manifest_path.read_bytes()
    manifest = _parse(raw, manifest_path)
    _check_names(manifest, manifest_path)
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise BundleError(f"{file} is missing from the bundle", EXPORT_HINT)
        if file.stat().st_size != entry.size:
            raise BundleError(
                f"{file} has {file.stat().st_size} bytes, the bundle was made with {entry.size}", EXPORT_HINT
            )
    for role in ("target", "draft"):
        model = getattr(manifest, role)
        if model is not None:
            _check_model(role, model, manifest, manifest_path)
    check_head(manifest, manifest_path)
    if manifest.draft is not None and manifest.draft.vocab != manifest.target.vocab:
        raise BundleError(
            f"{manifest_path}: the draft has {manifest.draft.vocab} tokens, "
            f"the target {manifest.target.vocab}",
            EXPORT_HINT,
        )
    return Bundle(path, manifest, hashlib.sha256(raw).hexdigest())


def _parse(raw: bytes, where: Path) -> Manifest:
    try:
        version = msgspec.json.decode(raw, type=_Version).format
        if version != FORMAT:
            raise BundleError(
                f"{where} has bundle format {version}, this hexgraft reads format {FORMAT}",
                "export again with this version, or use the version that made the bundle",
            )
        return msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{where} is not a bundle manifest: {error}", EXPORT_HINT) from error


def _check_names(manifest: Manifest, where: Path) -> None:
    for name in manifest.files:
        if not is_inner_path(name) or name == MANIFEST:
            raise BundleError(f"{where} names {clip(name)!r}, which is no file in a bundle", EXPORT_HINT)
        pure = PurePosixPath(name)
        for part in (pure, *pure.parents[:-1]):
            if (where.parent / part).is_symlink():
                raise BundleError(f"{where.parent / part} is a link; a bundle holds plain files", EXPORT_HINT)


def _check_model(role: str, model: ModelEntry, manifest: Manifest, where: Path) -> None:
    """Everything a session would otherwise trip over in the middle of a run."""

    def refuse(what: str) -> None:
        raise BundleError(f"{where}: {role} {what}", EXPORT_HINT)

    sizes = (
        model.layers,
        model.hidden,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocab,
        model.context,
    )
    if min(sizes) < 1 or max(sizes) > _LARGEST or model.heads % model.kv_heads or model.head_dim % 2:
        refuse("has impossible sizes")
    for rope in (model.rope, *([model.local_rope] if model.local_rope is not None else [])):
        if rope.dim != model.head_dim:
            refuse(f"rotates {rope.dim} of {model.head_dim} head dimensions, which is not supported")
        if 2 * len(rope.frequencies) != rope.dim or not all(0 <= f <= 1e3 for f in rope.frequencies):
            refuse("has RoPE frequencies that are not one finite number for every two head dimensions")
        if not 0 < rope.scale <= 1e3:
            refuse(f"has the RoPE scale {rope.scale}, expected a positive number")
    if len(model.features) > 8 or not all(0 <= layer <= model.layers for layer in model.features):
        refuse(f"gives features after the layers {model.features}, it has {model.layers}")
    if model.window is not None and model.window < 1:
        refuse(f"has a window of {model.window} positions")
    if not model.widths or sorted(set(model.widths)) != model.widths or model.widths[0] < 1:
        refuse(f"has widths {model.widths}, expected ascending positive numbers")
    capacities = model.device_capacities
    if sorted(set(capacities)) != capacities or capacities[0] < 1 or capacities[-1] != model.context:
        refuse(f"has capacities {capacities}, expected ascending numbers up to its context {model.context}")
    if not -1e9 <= model.mask_value <= -20:
        refuse(f"has the mask value {model.mask_value}, expected between -1e9 and -20")
    if role not in manifest.provenance:
        refuse("has no provenance")
    if not model.graphs:
        refuse("has no graphs")
    for graph in model.graphs:
        if graph.file not in manifest.files:
            refuse(f"names a graph that is not in the bundle: {graph.file}")
        if graph.htp is not None and graph.htp.binary not in manifest.files:
            refuse(f"names a context binary that is not in the bundle: {graph.htp.binary}")
        if graph.htp is not None and not is_vendor(model) and graph.capacity not in capacities:
            refuse(f"names {graph.file} of {graph.capacity} slots, which is none of its capacities")
    check_layout(model, refuse)
    needed = [manifest.tokenizer.file, manifest.tokenizer.chat_template]
    for file in needed:
        if file is not None and file not in manifest.files:
            raise BundleError(
                f"{where} names a tokenizer file that is not in the bundle: {file}", EXPORT_HINT
            )
    stops = [
        *manifest.tokenizer.stop_tokens,
        *([manifest.tokenizer.bos] if manifest.tokenizer.bos is not None else []),
    ]
    if any(not 0 <= token < manifest.target.vocab for token in stops):
        raise BundleError(f"{where} names a stop or begin token outside the vocabulary", EXPORT_HINT)
