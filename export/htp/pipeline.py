"""From a checkpoint to a bundle with NPU graphs, stage by stage; an interrupted export goes on where it
stopped."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hexgraft.export.head import own_graph
from hexgraft.export.htp.build import Build, Compiler, build_graphs, choose_mask, compile_variant
from hexgraft.export.htp.calibrate import LEAST_TOKENS, calibrate
from hexgraft.export.htp.gate import gate
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.plan import HtpOptions, Variant, capacities_of, packaged_text, variants
from hexgraft.export.htp.precision import Keep
from hexgraft.export.htp.ranges import load_ranges, save_ranges
from hexgraft.export.htp.search import search_keeps
from hexgraft.export.htp.stages import STATE, Stages, unfinished_folder
from hexgraft.export.resume import checkpoint_facts
from hexgraft.export.writer import (
    ExportOptions,
    Report,
    Step,
    check_context,
    export_bundle,
    hash_files,
    write_manifest,
)
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.htp.qnn import qairt_version, require_qnn
from hexgraft.host.manifest import MANIFEST, GraphEntry
from hexgraft.host.text import TextCodec
from hexgraft.models.checkpoint import Checkpoint
from hexgraft.models.decoder import build_decoder
from hexgraft.models.errors import ExportError
from hexgraft.models.graph import Weight
from hexgraft.models.head_checkpoint import HeadCheckpoint

Say = Callable[[str], None]
Draft = Checkpoint | HeadCheckpoint

_MOST_TOKENS = 1024
"""What is read of a text: more moves no range that matters."""
_LONGEST_TOKEN = 64
"""Characters that tokens of a text have at most, on average."""


def export_htp(
    target: Checkpoint,
    output: Path,
    *,
    draft: Draft | None,
    options: ExportOptions,
    htp: HtpOptions,
    report: Report,
    say: Say,
    compiler: Callable[[Path], Elsewhere] | None = None,
) -> None:
    """Write a bundle of `target` (and `draft`) with graphs for every chip of `htp` at `output`.

    `say` hears what is being done, and which stages an earlier run had finished. `compiler` gives what makes
    the binaries in place of this machine, from the folder its notes go to; a dry one leaves no bundle.
    Raises ExportError or UsageError; what was finished by then is kept beside `output` for the next run.
    """
    if compiler is None or htp.gated:
        require_qnn("--target htp" if compiler is None else "the parity gate")
    head = isinstance(draft, HeadCheckpoint)
    htp.check(options.widths, head)
    check_context(target, options.context)
    models = [target] if draft is None or isinstance(draft, HeadCheckpoint) else [target, draft]
    htp.precision.check_names(max(model.config.layers for model in models), head)
    for variant in variants(htp):
        variant.precision.check_blocks(_weights(models))
        if isinstance(draft, HeadCheckpoint):
            variant.precision.for_head().check_blocks(own_graph(draft).weights)
    with unfinished_folder(output) as folder:
        stages = Stages(folder, lambda name: say(f"{name}: finished by an earlier run"))
        elsewhere = compiler(folder) if compiler else None
        _Export(folder, stages, options, htp, report, say, elsewhere).run(target, draft)
        if elsewhere is not None and elsewhere.dry:
            return
        (folder / "bundle").rename(output)
        (folder / STATE).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _weights(models: Sequence[Checkpoint]) -> Iterator[Weight]:
    for model in models:
        yield from build_decoder(model.config, "model.weights", name="target").weights


class Elsewhere(Compiler, Protocol):
    """A compiler that also tells the bundle where its binaries were made."""

    def write_records(self, bundle: Path) -> list[str]:
        """Write what it noted into the bundle; the names of the files."""


class _Export:
    def __init__(
        self,
        folder: Path,
        stages: Stages,
        options: ExportOptions,
        htp: HtpOptions,
        report: Report,
        say: Say,
        compiler: Elsewhere | None,
    ) -> None:
        self.folder, self.stages, self.options, self.htp = folder, stages, options, htp
        self.report, self.say, self.compiler = report, say, compiler
        self.path = folder / "bundle"
        self._texts: dict[tuple[str, Path | None], list[int]] = {}

    def run(self, target: Checkpoint, draft: Draft | None) -> None:
        models = [target, draft] if draft else [target]
        key: Any = [[checkpoint_facts(model.path) for model in models], self.options.context]
        floats = self.stages.run(
            "float graphs",
            key,
            lambda: self._float(target, draft),
            lambda files: bool(files) and self.path.is_dir(),
        )
        bundle = open_bundle(self.path)
        entries: dict[str, list[GraphEntry]] = {}
        parity: dict[str, dict[str, float]] = {}
        for role in ("target", "draft") if draft else ("target",):
            entries[role], found = self._model(bundle, role, key)
            parity |= found
        if self.compiler is None or not self.compiler.dry:
            self._seal(bundle, floats, entries, parity)

    def _seal(
        self,
        bundle: Bundle,
        floats: list[str],
        entries: dict[str, list[GraphEntry]],
        parity: dict[str, dict[str, float]],
    ) -> None:
        """Enter what was built into the manifest beside the files `floats`, and take all else away."""
        manifest = bundle.manifest
        for role, graphs in entries.items():
            model = bundle.model(role)
            model.widths = list(self.options.widths)
            model.capacities = list(capacities_of(self.htp, model.context))
            model.graphs = [graph for graph in model.graphs if graph.provider == "cpu"] + graphs
        manifest.parity = parity
        files = {file for graphs in entries.values() for graph in graphs for file in _files(graph)}
        if self.compiler is not None:
            files |= set(self.compiler.write_records(self.path))
        self._sweep({MANIFEST, *floats, *files})
        built = hash_files(self.path, sorted(self.path / file for file in files), self.report)
        manifest.files = {file: manifest.files[file] for file in floats} | built
        write_manifest(manifest, self.path)

    def _sweep(self, kept: set[str]) -> None:
        """Remove working files, and what runs with other options had compiled before they were ended."""
        for path in sorted(self.path.rglob("*"), reverse=True):  # what a folder holds before the folder
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(self.path).as_posix() not in kept:
                path.unlink()

    def _float(self, target: Checkpoint, draft: Draft | None) -> list[str]:
        """Write the bundle that NPU graphs are added to; the names of its files."""
        shutil.rmtree(self.path, ignore_errors=True)
        export_bundle(target, self.path, draft=draft, options=self.options, report=self.report)
        return sorted(open_bundle(self.path).manifest.files)

    def _model(
        self, bundle: Bundle, role: str, key: Any
    ) -> tuple[list[GraphEntry], dict[str, dict[str, float]]]:
        graphs: list[GraphEntry] = []
        parity: dict[str, dict[str, float]] = {}
        for variant in variants(self.htp):
            variant, made_of = self._precision(bundle, role, variant, [key, role])
            build = Build(bundle, role, variant, self.htp, self.options.widths, self.say)
            if variant.precision.integer:
                build.mask = choose_mask(load_ranges(self._ranges_file(role)))
            where = self.compiler.identity if self.compiler else qairt_version()
            graphs_of = [made_of] if self.compiler else [made_of, where]
            make = partial(self._graphs, build)
            found = compile_variant(build, self.stages, graphs_of, make, self.compiler)
            graphs += found
            simulated = [graph for graph in found if graph.provider == "htp-sim"]
            if simulated and self.htp.parity_rows:
                text = self._text(bundle, "parity", self.htp.parity_text)
                what = [made_of, where, [graph.file for graph in simulated], text, self.htp.parity_rows]
                name = f"{role} parity {variant.tag}"
                figures = self.stages.run(name, what, partial(gate, build, found, text), self._stands)
                parity |= figures
                if bundle.model(role).head is not None and self.htp.min_agreement is not None:
                    self._tell_of_head(figures, self.htp.min_agreement)
        return graphs, parity

    def _stands(self, figures: dict[str, dict[str, float]]) -> bool:
        """Whether what a gate found earlier lets graphs through: it may have been forced then."""
        return self.htp.force or all(one["passed"] for one in figures.values())

    def _tell_of_head(self, figures: dict[str, dict[str, float]], wanted: float) -> None:
        """Say how far a head agrees, which the search for an agreement of `wanted` left alone."""
        rows = sum(one["rows"] for one in figures.values())
        agreement = sum(one["agreement"] * one["rows"] for one in figures.values()) / rows
        less = ", less than asked of the target: --keep raises it" if agreement < wanted else ""
        self.say(f"draft: the head agrees in {agreement:.1%} of {rows:.0f} rows{less}")

    def _precision(self, bundle: Bundle, role: str, variant: Variant, key: Any) -> tuple[Variant, Any]:
        """The variant with the layers that the search keeps higher, if one was asked for; a head has none
        to choose among."""
        if variant.precision.name == "fp16":
            return variant, [key, repr(variant.precision)]
        is_head = bundle.model(role).head is not None
        if is_head:
            variant = Variant(variant.precision.for_head(), variant.socs)
        text = self._text(bundle, "calibration", self.htp.calibration)
        key = [key, hashlib.sha256(repr(text).encode()).hexdigest()]
        file = self._ranges_file(role)
        self.stages.run(
            f"{role} calibration", key, lambda: self._calibrate(bundle, role, text), lambda _: file.is_file()
        )
        key = [key, repr(variant.precision)]
        if self.htp.min_agreement is None or is_head:
            return variant, key
        wanted = self.htp.min_agreement
        held_out = self._text(bundle, "parity", self.htp.parity_text)

        def look() -> list[list[str]]:
            self.say(f"{role}: looking for the layers to keep higher")
            precision = search_keeps(
                Network(bundle, role),
                bundle,
                variant.precision,
                load_ranges(file),
                held_out,
                wanted,
                self.say,
            )
            return [[keep.pattern, keep.format] for keep in precision.keep]

        keeps = self.stages.run(f"{role} search {variant.tag}", [key, wanted, held_out], look)
        kept = tuple(Keep(pattern, format) for pattern, format in keeps)
        return Variant(variant.precision.with_keeps(kept), variant.socs), [key, keeps]

    def _calibrate(self, bundle: Bundle, role: str, text: list[int]) -> None:
        self.say(f"{role}: calibrating on {len(text)} tokens")
        save_ranges(calibrate(bundle, role, [text], threads=self.htp.threads), self._ranges_file(role))

    def _graphs(self, build: Build) -> None:
        """Static graphs and quantised weights beside the model's own weights."""
        total, done = build.network.model.parameters * 4, 0

        def progress(count: int) -> None:
            nonlocal done
            done += count
            self.report(Step(f"{build.role} {build.variant.tag}", min(done, total), total))

        ranges = None
        if build.variant.precision.name != "fp16":
            ranges = load_ranges(self._ranges_file(build.role))
        build_graphs(build, ranges, progress)

    def _ranges_file(self, role: str) -> Path:
        return self.folder / f"{role}.ranges.npz"

    def _text(self, bundle: Bundle, what: str, file: Path | None) -> list[int]:
        """The tokens of a text, of which target and draft have the same."""
        if (what, file) not in self._texts:
            self._texts[what, file] = self._read(bundle, what, file)
        return self._texts[what, file]

    def _read(self, bundle: Bundle, what: str, file: Path | None) -> list[int]:
        try:
            text = _beginning(file) if file else packaged_text(what)
        except UnicodeDecodeError:
            raise ExportError(
                f"the {what} text {file} is not UTF-8",
                f"convert it, as by iconv -f LATIN1 -t UTF-8, or give another --{what}",
            ) from None
        except OSError as error:
            raise ExportError(
                f"cannot read the {what} text {file}: {error.strerror or error}", "see `ls -l` on it"
            ) from error
        tokens = TextCodec(bundle).encode_raw(text)[:_MOST_TOKENS]
        least = LEAST_TOKENS if what == "calibration" else 64
        if len(tokens) < least:
            raise ExportError(
                f"the {what} text has {len(tokens)} tokens, at least {least} are needed",
                f"give a longer text with --{what} FILE",
            )
        return tokens


def _beginning(file: Path) -> str:
    """As much of a text as there is use for: a corpus takes minutes, and memory, to be tokenized whole."""
    with file.open(encoding="utf-8") as stream:
        return stream.read(_MOST_TOKENS * _LONGEST_TOKEN)


def _files(graph: GraphEntry) -> Iterator[str]:
    yield graph.file
    if graph.htp is not None:
        yield graph.htp.binary
