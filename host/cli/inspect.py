"""`hexgraft inspect`: what a bundle holds, after checking that it is whole."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import numpy as np
from rich.markup import escape

from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.console import bytes_progress, print_json, stdout, visible
from hexgraft.host.cli.table import Table
from hexgraft.host.layout import LAYOUTS, is_vendor
from hexgraft.host.manifest import GraphEntry, ModelEntry

_PARITY = {
    "agreement": "agreement {:.1%}",
    "largest_margin": "margin where not {:.2g}",
    "kl": "KL {:.2g}",
    "sqnr_db": "SQNR {:.1f} dB",
    "perplexity_other": "perplexity {:.4g}",
    "perplexity_reference": "fp32's {:.4g}",
    "rows": "over {:.0f} rows",
}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--quick", "--no-verify", "quick", is_flag=True, help="Do not read the files to check their sha256."
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest and the bundle's digest as JSON.")
def inspect(bundle: Path, quick: bool, as_json: bool) -> None:
    """Check BUNDLE against its manifest and show what it holds."""
    opened = open_bundle(bundle)
    if not quick:
        total = sum(entry.size for entry in opened.manifest.files.values())
        done = 0
        with bytes_progress() as update:

            def advance(count: int) -> None:
                nonlocal done
                done += count
                update("checking", done, total)

            opened.verify(advance)
    if as_json:
        print_json({"digest": opened.digest, "verified": not quick, **msgspec.to_builtins(opened.manifest)})
        return
    _show(opened, "names and sizes" if quick else "every byte")


def _show(bundle: Bundle, checked: str) -> None:
    manifest, out = bundle.manifest, stdout()
    made = f"format {manifest.format}, made by hexgraft {_plain(manifest.hexgraft)}"
    out.print(f"[bold]{_plain(str(bundle.path))}[/bold]  {made}")
    out.print(f"digest {bundle.digest[:16]}, checked: {checked}")
    for role in ("target", "draft"):
        model: ModelEntry | None = getattr(manifest, role)
        if model is not None:
            out.print(_model_table(role, model, bundle))
    tokenizer = manifest.tokenizer
    stops = ", ".join(map(str, tokenizer.stop_tokens)) or "none"
    out.print(f"tokenizer: stop tokens {stops}, chat template {'yes' if tokenizer.chat_template else 'no'}")
    sampling = [f"{name} {value:g}" for name, value in tokenizer.generation.items()]
    if sampling:
        out.print(f"its authors sample with {_plain(', '.join(sampling))} (--sampling authors)")
    files = Table("file", "bytes", "sha256", title="files", title_justify="left")
    for name, entry in manifest.files.items():
        files.add_row(_plain(name), f"{entry.size:,}", _plain(entry.sha256[:16]))
    out.print(files)


def _model_table(role: str, model: ModelEntry, bundle: Bundle) -> Table:
    source = bundle.manifest.provenance[role]
    table = Table(title=f"{role}: {_plain(model.name)}", title_justify="left", show_header=False)
    cache = _cache_bytes(model) / 1e6
    rows = {
        "checkpoint": f"{source.checkpoint} ({source.format}, licence {source.license or 'not stated'})",
        "architecture": f"{model.architecture}, {model.parameters / 1e6:.1f} M weights",
        "vocabulary": _vocabulary(model),
        "shape": f"{model.layers} layers, {model.heads}/{model.kv_heads} heads of {model.head_dim}",
        "context": f"{model.context} slots, {cache:.1f} MB of {model.kv_dtype} K/V when full",
        "layout": _layout(model),
        "widths": ", ".join(map(str, model.widths)),
        "capacities": ", ".join(map(str, model.device_capacities)) + " slots",
        "graphs": "\n".join(_graph(graph) for graph in model.graphs),
        "parity": _parity(model, bundle),
    }
    if model.features or model.head is not None:
        rows["features"] = _features(model)
    for name, value in rows.items():
        table.add_row(name, _plain(value))
    return table


def _vocabulary(model: ModelEntry) -> str:
    tokens = f"{model.vocab} tokens"
    return tokens if model.logit_size == model.vocab else f"{tokens}, of which it proposes {model.logit_size}"


def _features(model: ModelEntry) -> str:
    """What a target gives to draft heads, or what a head reads of it."""
    if model.head is None:
        return f"{model.hidden_size} numbers a token, after the layers {', '.join(map(str, model.features))}"
    return f"{model.head.kind} head, reads {model.head.feature_size or model.hidden} numbers a token"


def _plain(text: str) -> str:
    """A name out of a bundle as it is: no markup, and nothing a terminal would act on."""
    return escape(visible(text))


def _parity(model: ModelEntry, bundle: Bundle) -> str:
    """One line a graph that was compared with the CPU's, those that failed the gate marked."""
    lines = []
    for graph in model.graphs:
        found = bundle.manifest.parity.get(graph.file, {})
        if graph.provider != "cpu" and found:
            words = [form.format(found[key]) for key, form in _PARITY.items() if key in found]
            verdict = "" if found.get("passed", 1) else "FAILED the gate: "
            over = f" over {graph.capacity} slots" if len(model.device_capacities) > 1 else ""
            lines.append(f"{graph.precision} {graph.width} rows{over}: {verdict}{', '.join(words)}")
    return "\n".join(lines) or "the CPU graph is the reference"


def _graph(graph: GraphEntry) -> str:
    if graph.htp is None:
        return f"{graph.file} ({graph.provider} {graph.precision}{_part(graph)})"
    htp = graph.htp
    shared = ", shared weights" if htp.shared else ""
    return (
        f"{graph.file} ({graph.provider} {graph.precision}, {htp.soc} V{htp.arch}, QAIRT {htp.qairt}{shared})"
    )


def _part(graph: GraphEntry) -> str:
    return f", part {graph.vendor.part + 1} of {graph.vendor.parts}" if graph.vendor is not None else ""


def _layout(model: ModelEntry) -> str:
    """The cache layout in words: how many columns a pass has, and how keys and values are stored."""
    words = LAYOUTS[model.kv_layout]
    if is_vendor(model):
        words += f", {model.context + max(model.widths)} columns in every width"
    if model.kv_encodings:
        scales = [scale for entry in model.kv_encodings for scale in (entry.key.scale, entry.value.scale)]
        words += f", {model.kv_dtype} K/V, scales {min(scales):.3g} to {max(scales):.3g}"
    return words


def _cache_bytes(model: ModelEntry) -> int:
    numbers = 2 * model.layers * model.kv_heads * model.head_dim * model.context
    return numbers * np.dtype(model.kv_dtype).itemsize
