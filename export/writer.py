"""Writes a bundle: graphs, weights, tokenizer and manifest, in a folder that appears only when it is
whole."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import onnx

from hexgraft.export.cpu.graph import PackedGraph, pack
from hexgraft.export.cpu.norms import join_norms
from hexgraft.export.cpu.weights import write_packed
from hexgraft.export.head import FOLDER, HEAD_GRAPH, HEAD_WEIGHTS, head_graph, write_head_entry
from hexgraft.export.resume import Finished, export_identity
from hexgraft.export.weights import Tensors, write_weights
from hexgraft.export.whole_folder import whole_folder
from hexgraft.host.manifest import (
    FORMAT,
    JOINED_LAYOUT,
    KV_LAYOUT,
    MANIFEST,
    FileEntry,
    GraphEntry,
    Manifest,
    ModelEntry,
    Provenance,
    RopeEntry,
    TokenizerEntry,
)
from hexgraft.models.acceptance import read_acceptance
from hexgraft.models.attention import FUSED, STACKED
from hexgraft.models.checkpoint import Checkpoint, TokenizerFiles
from hexgraft.models.config import ModelConfig, Rope
from hexgraft.models.decoder import build_decoder
from hexgraft.models.errors import ExportError
from hexgraft.models.graph import Graph
from hexgraft.models.head_checkpoint import HeadCheckpoint
from hexgraft.models.tokenizer import load_tokenizer, vocab_hash
from hexgraft.models.vocabulary import fit_draft

DEFAULT_WIDTHS = (1, 8, 16, 32, 128)
DEFAULT_CONTEXT = 2048
WEIGHTS = "model.weights"
MASK_VALUE = -30000.0
"""Hides a column in float graphs: far below any score, finite even in fp16, and never added twice."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the bundle declares: `widths` T for static graphs, `context` C in cache slots, and the `features`
    its target gives (`ModelEntry.features`)."""

    widths: tuple[int, ...] = DEFAULT_WIDTHS
    context: int = DEFAULT_CONTEXT
    features: tuple[int, ...] = ()
    precision: str = "fp32"
    """Of the CPU's graphs: one of `export.cpu.graph.PRECISIONS`."""
    draft_precision: str | None = None
    """Of the draft's, where it is to be another."""
    attention: str = STACKED
    """Of the CPU's graphs, `models.attention`; as the NPU's have it where there will be any."""

    def precision_of(self, role: str) -> str:
        """Of the CPU's graph of "target" or "draft"."""
        return (self.draft_precision if role == "draft" else None) or self.precision


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of an export: what is being done, and how many of how many bytes."""

    what: str
    done: int
    total: int


Report = Callable[[Step], None]


def export_bundle(
    target: Checkpoint,
    path: Path,
    *,
    draft: Checkpoint | HeadCheckpoint | None = None,
    options: ExportOptions,
    report: Report,
) -> None:
    """Write a bundle of `target` (and `draft`) at `path`, which must not exist. With a head for a draft the
    target gives the features that the head reads. What a draft's training measured goes into its entry.

    Raises ExportError when the draft does not fit the target, or the disk the bundle.
    """
    check_context(target, options.context)
    if isinstance(draft, HeadCheckpoint):
        options = replace(options, features=draft.config.features)
    elif draft is not None:
        draft = fit_draft(target, draft)
    acceptance = read_acceptance(draft.path) if draft is not None else []
    finished = Finished(export_identity(target, draft, options))
    with whole_folder(path, finished) as folder:
        models: dict[str, Checkpoint | HeadCheckpoint] = {"target": target}
        if draft is not None:
            models["draft"] = draft
        writer = _Writer(folder, options, report, finished)
        entries = {"target": writer.model("target", target)}
        if draft is not None:
            entries["draft"] = writer.draft(draft, target)
            entries["draft"].acceptance = acceptance
        finished.end()
        tokenizer = write_tokenizer(target.tokenizer, folder)
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        manifest = Manifest(
            format=FORMAT,
            hexgraft=importlib.metadata.version("hexgraft"),
            target=entries["target"],
            draft=entries.get("draft"),
            tokenizer=tokenizer,
            provenance={
                role: Provenance(checkpoint.origin, checkpoint.source_format, checkpoint.license)
                for role, checkpoint in models.items()
            },
            parity={},
            files=hash_files(folder, files, report, writer.digests),
        )
        write_manifest(manifest, folder)


def check_context(target: Checkpoint, context: int) -> None:
    """Raise ExportError if a model is not right for so many positions."""
    if context > target.config.context:
        raise ExportError(
            f"--context {context} is more than the {target.config.context} positions "
            f"{target.name} is right for",
            _context_hint(target.config),
        )


def _context_hint(config: ModelConfig) -> str:
    hint = f"use --context {config.context} or less"
    return f"{hint}: {config.context_limit}" if config.context_limit else hint


class _Writer:
    """Writes models into a bundle's folder; `digests` gathers the sha256 of their weights' files."""

    def __init__(self, folder: Path, options: ExportOptions, report: Report, finished: Finished) -> None:
        self.folder, self.options, self.report, self.finished = folder, options, report, finished
        self.digests: dict[str, str] = {}

    def model(self, role: str, checkpoint: Checkpoint) -> ModelEntry:
        """Write a model of its own; its entry."""
        (self.folder / role).mkdir(exist_ok=True)
        graph, config = self._graph(role, checkpoint)
        self._write(role, graph, checkpoint, f"{role}/{WEIGHTS}", f"{role}/model.onnx")
        features = self.options.features if role == "target" else ()
        file, precision = f"{role}/model.onnx", self.options.precision_of(role)
        return _model_entry(file, precision, config, checkpoint.name, graph, self.options, features)

    def draft(self, draft: Checkpoint | HeadCheckpoint, target: Checkpoint) -> ModelEntry:
        """Write a draft, a head beside the target; its entry."""
        if isinstance(draft, HeadCheckpoint):
            return self._head(draft, target)
        return self.model("draft", draft)

    def _head(self, head: HeadCheckpoint, target: Checkpoint) -> ModelEntry:
        lender = self._graph("target", target)[0]
        precision = self.options.precision_of("draft")
        lending = None if isinstance(lender, PackedGraph) else lender
        with _draft_hint():
            graph = head_graph(head, lending, target.config.tied, precision, attention=self.options.attention)
        self._write("draft", graph, head, f"{FOLDER}/{HEAD_WEIGHTS}", HEAD_GRAPH)
        entry = _model_entry(HEAD_GRAPH, precision, head.config.layer, head.name, graph, self.options, ())
        entry.architecture, entry.head = head.config.kind, write_head_entry(head, self.folder)
        return entry

    def _graph(self, role: str, checkpoint: Checkpoint) -> tuple[Graph, ModelConfig]:
        config = checkpoint.config.within(self.options.context)
        features = self.options.features if role == "target" else ()
        precision = self.options.precision_of(role)
        attention = self.options.attention
        # No token hangs on a draft's last digits. Equal bits at every width need stacks: a product of one row
        # is another kernel's.
        steady = role == "target" and attention != FUSED
        if steady and precision.endswith("a8"):
            attention = STACKED
        graph = build_decoder(config, WEIGHTS, name=role, features=features, attention=attention)
        if precision != "fp32":
            with _draft_hint() if role == "draft" else nullcontext():
                graph = pack(graph, checkpoint, precision, steady=steady)
        return graph, config

    def _write(self, role: str, graph: Graph, source: Tensors, weights: str, file: str) -> None:
        total, done = sum(weight.nbytes for weight in graph.weights), 0

        def progress(count: int) -> None:
            nonlocal done
            done += count
            self.report(Step(f"{role} weights", done, total))

        path, mark = self.folder / weights, functools.partial(self.finished.mark, role)
        whole = path.is_file() and path.stat().st_size == graph.weights_size
        kept = self.finished.counts.get(role, 0) if whole else 0
        if isinstance(graph, PackedGraph):
            self.digests[weights] = write_packed(graph, source, path, progress, kept, mark)
        else:
            self.digests[weights] = write_weights(graph, source, path, progress, kept, mark)
        if self.options.attention == FUSED:  # such graphs have ONNX Runtime's own operators in any case
            join_norms(graph.proto)
        onnx.save(graph.proto, self.folder / file)


@contextmanager
def _draft_hint() -> Iterator[None]:
    """A draft that does not fit in blocks need not be in blocks."""
    try:
        yield
    except ExportError as error:
        raise ExportError(f"the draft: {error.message}", "use --cpu-draft-precision fp32") from error


def target_entry(checkpoint: Checkpoint, options: ExportOptions) -> ModelEntry:
    """What the manifest of an fp32 bundle will say of a target, known before anything is written."""
    config = checkpoint.config.within(options.context)
    graph = build_decoder(config, WEIGHTS, name="target", features=options.features)
    file = "target/model.onnx"
    return _model_entry(file, "fp32", config, checkpoint.name, graph, options, options.features)


def _model_entry(
    file: str,
    precision: str,
    config: ModelConfig,
    name: str,
    graph: Graph,
    options: ExportOptions,
    features: Sequence[int],
) -> ModelEntry:
    return ModelEntry(
        name=name,
        architecture=config.family,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab,
        rope=rope_entry(config.rope),
        context=min(options.context, config.context),
        widths=list(options.widths),
        kv_dtype="float32",
        kv_layout=JOINED_LAYOUT if options.attention == FUSED else KV_LAYOUT,
        mask_value=MASK_VALUE,
        graphs=[GraphEntry(file, "cpu", precision)],
        parameters=sum(weight.nbytes for weight in graph.weights) // 4,
        window=config.window,
        local_rope=rope_entry(config.local_rope) if config.local_rope is not None else None,
        features=list(features),
    )


def rope_entry(rope: Rope) -> RopeEntry:
    """What a manifest says of RoPE."""
    return RopeEntry(rope.dim, list(rope.frequencies), rope.scale)


def write_tokenizer(tokenizer: TokenizerFiles, folder: Path) -> TokenizerEntry:
    """Write a tokenizer's files into a bundle's folder; what the manifest says of them."""
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer_json, encoding="utf-8")
    template = None
    if tokenizer.chat_template is not None:
        template = "chat_template.jinja"
        (folder / template).write_text(tokenizer.chat_template, encoding="utf-8")
    return TokenizerEntry(
        file="tokenizer.json",
        chat_template=template,
        stop_tokens=list(tokenizer.stop_tokens),
        bos=tokenizer.bos,
        special=dict(tokenizer.special),
        vocab_hash=vocab_hash(load_tokenizer(tokenizer.tokenizer_json, "tokenizer")),
        generation=dict(tokenizer.generation),
    )


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write `bundle.json`, in one step."""
    fresh = folder / (MANIFEST + ".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    fresh.replace(folder / MANIFEST)


def hash_files(
    folder: Path, files: Sequence[Path], report: Report, known: Mapping[str, str] | None = None
) -> dict[str, FileEntry]:
    """The manifest's entries of `files`, which lie below `folder`; `known` gives some of their sha256."""
    known = known or {}
    names = {file: file.relative_to(folder).as_posix() for file in files}
    total, done = sum(file.stat().st_size for file in files if names[file] not in known), 0
    entries = {}
    for file in files:
        if names[file] in known:
            entries[names[file]] = FileEntry(file.stat().st_size, known[names[file]])
            continue
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(8 << 20):
                digest.update(block)
                done += len(block)
                report(Step("checksums", done, total))
        entries[names[file]] = FileEntry(file.stat().st_size, digest.hexdigest())
    return entries
