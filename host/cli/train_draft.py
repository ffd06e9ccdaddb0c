"""`hexgraft train-draft`: a draft for a target, made from what the target itself writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from hexgraft.export.writer import ExportOptions, export_bundle, target_entry
from hexgraft.host.atomic_file import write_whole
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.console import print_json, say, token_progress
from hexgraft.host.cli.finite import Finite
from hexgraft.host.cli.interrupt import resumable
from hexgraft.host.cli.threads import threads_option
from hexgraft.host.cli.typed import typed_options
from hexgraft.host.given_text import read_prompts
from hexgraft.host.manifest import MANIFEST
from hexgraft.models.attention import CHOSEN
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import BundleError, HexgraftError, UsageError

if TYPE_CHECKING:
    from hexgraft.export.train.job import Job
    from hexgraft.export.train.workers import Workers

KINDS = ("head", "small")
_TOKENS = 400_000
"""Text to write where neither tokens nor minutes are given."""
_USED_BY = {"vocab": "head", "unroll": "head", "start": "head", "layers": "small"}
"""The kind of draft that alone has a use for an option."""


@click.command("train-draft")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The draft to write.")
@click.option("--kind", type=click.Choice(KINDS), default="head", show_default=True, help="What to train.")
@click.option(
    "--from",
    "start",
    type=click.Path(path_type=Path),
    help="A head to go on from, in place of the target's last layer: a folder, an id on the hub, or a name "
    "that `export --draft` knows.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    help="Tokens of text, about. Default: 400000, or with --minutes as many as half of them suffice for.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="Prompts of your own beside ours, one a line, of 320 tokens at most.",
)
@click.option(
    "--vocab",
    default=12288,
    show_default=True,
    type=click.IntRange(min=16),
    help="Tokens a head can propose.",
)
@click.option(
    "--layers", default=4, show_default=True, type=click.IntRange(min=1), help="Layers of a small draft."
)
@click.option(
    "--minutes",
    type=Finite(min=0.1),
    help="Time for all of it, at most half for text but for the first --texts.",
)
@click.option(
    "--epochs", default=4, show_default=True, type=click.IntRange(min=1), help="Passes over the text."
)
@click.option(
    "--unroll",
    default=3,
    show_default=True,
    type=click.IntRange(1, 8),
    help="Steps a head is trained for on its own states.",
)
@click.option(
    "--batch",
    default=2048,
    show_default=True,
    type=click.IntRange(min=64),
    help="Rows of text a training step reads.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, (1 << 32) - 1),
    help="Of prompts, sampling and order.",
)
@click.option(
    "--texts", default=256, show_default=True, type=click.IntRange(min=1), help="Texts written side by side."
)
@click.option(
    "--new-tokens",
    default=256,
    show_default=True,
    type=click.IntRange(min=4),
    help="Tokens of an answer at the most.",
)
@click.option("--work", type=click.Path(path_type=Path), help="Folder for texts. Default: OUTPUT.work")
@click.option("--shard", help="I/N: only write every N-th part of the text, from the I-th (0, 1, ...) on.")
@threads_option
@click.option("--full-precision", is_flag=True, help="Compute in float32 instead of bfloat16.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@resumable()
def train_draft(target: Path, output: Path, **options: Any) -> None:
    """Make a draft for TARGET (a bundle or a checkpoint) out of text that the target writes.

    The result goes into `hexgraft export --draft`. An interrupted run goes on where it was. With --shard only
    text is written, so that many machines can share the work; a run without it then trains on all of it, and
    under torchrun in several processes. Needs `pip install 'hexgraft[train]'`.

    \b
    Examples:
      hexgraft train-draft smollm2 -o smollm2-head --minutes 90
      hexgraft train-draft big -o head --work /mnt/texts --shard 3/8
      torchrun --nproc-per-node 2 -m hexgraft.host.cli train-draft big -o head --work /mnt/texts
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("training needs torch", "pip install 'hexgraft[train]'")
    import torch

    from hexgraft.export.train.job import TrainingJob
    from hexgraft.export.train.report import can_draw
    from hexgraft.export.train.workers import Workers

    _refuse_unused(options)
    _check_output(output)
    share = _shard(options["shard"]) if options["shard"] is not None else None
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    job = _job(options)
    work = options["work"] or output.with_name(output.name + ".work")
    workers = Workers()
    try:
        bundle = _bundle(target, work, job, share or (workers.rank, workers.count), workers)
        run = TrainingJob(bundle, work, job, say if workers.first else lambda message: None)
        if share is None and workers.first and not can_draw():
            say("without matplotlib no picture of the training is drawn: pip install 'hexgraft[plot]'")
        with token_progress("writing text", job.tokens) as advance:
            count = run.generate(*(share or (workers.rank, workers.count)), advance)
        if share is not None:
            _tell(
                {"work": str(work), "shard": options["shard"], "waves": count}, options["as_json"], str(work)
            )
            return
        count = workers.least(count)  # where time ran out, all go on with the waves that all have got to
        with token_progress("training", 0) as advance:
            report = run.train(output, count, workers, advance)
    finally:
        workers.close()
    if workers.first:
        _draw(report, output)
        _tell({"draft": str(output), **report}, options["as_json"], str(output))


def _job(options: dict[str, Any]) -> Job:
    """What the options ask for."""
    from hexgraft.export.train.job import Job
    from hexgraft.export.train.trainer import TrainOptions

    return Job(
        kind=options["kind"],
        layers=options["layers"],
        start=options["start"],
        tokens=options["tokens"] or (_TOKENS if options["minutes"] is None else None),
        rows=options["vocab"],
        seed=options["seed"],
        texts=options["texts"],
        new_tokens=options["new_tokens"],
        extra=tuple(read_prompts(options["prompts"])) if options["prompts"] else (),
        minutes=options["minutes"],
        train=TrainOptions(
            seed=options["seed"],
            epochs=options["epochs"],
            batch=options["batch"],
            unroll=options["unroll"] if options["kind"] == "head" else 1,
            single=TrainOptions().single if options["start"] is None else 0,
            low_precision=not options["full_precision"],
            orthogonal=options["kind"] == "head",
        ),
    )


def _refuse_unused(options: dict[str, Any]) -> None:
    """Raise UsageError for an option that was typed and that only a draft of another kind, or one begun
    otherwise, has a use for."""
    kind, typed = options["kind"], typed_options()
    for name, user in _USED_BY.items():
        if user != kind and name in typed:
            raise UsageError(
                f"--kind {kind} has no use for {typed[name]}", f"leave it out, or use --kind {user}"
            )
    if "vocab" in typed and "start" in typed:
        raise UsageError("a head that training goes on from keeps its tokens", "leave out --vocab")


def _check_output(output: Path) -> None:
    """An earlier draft is replaced, which is how a run goes on; nothing else is written into."""
    from hexgraft.export.train.head_file import RECIPE

    if not output.exists() or (output / RECIPE).is_file():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise UsageError(f"{output} exists already and is no draft of train-draft", "choose another name")


def _draw(report: dict[str, Any], output: Path) -> None:
    """A picture of the report where one can be drawn; that of an earlier draft in this folder goes."""
    from hexgraft.export.train.report import PICTURE, can_draw, draw_report

    (output / PICTURE).unlink(missing_ok=True)
    if can_draw():
        draw_report(report, output)


def _tell(report: dict[str, Any], as_json: bool, path: str) -> None:
    if as_json:
        print_json(report)
    else:
        click.echo(path)


def _shard(text: str) -> tuple[int, int]:
    first, _, second = text.partition("/")
    if not (first.isdecimal() and second.isdecimal() and int(first) < int(second)):
        raise UsageError(f"--shard {text!r} is not of the form I/N with I below N", "example: --shard 0/8")
    return int(first), int(second)


def _bundle(target: Path, work: Path, job: Job, share: tuple[int, int], workers: Workers) -> Bundle:
    """The target as a bundle, once nothing is found against the job; a checkpoint is exported into the work
    folder, once."""
    from hexgraft.export.train.checks import check_job
    from hexgraft.export.train.fingerprint import fingerprint

    if (target / MANIFEST).is_file():
        bundle = open_bundle(target)
        check_job(bundle.target, job, work, share)
        bundle.verify()
        return bundle
    path, checkpoint = work / "target", open_checkpoint(target)
    source, mark = work / "target.source", fingerprint(checkpoint.path)
    options = ExportOptions(context=min(ExportOptions().context, checkpoint.config.context), attention=CHOSEN)
    check_job(target_entry(checkpoint, options), job, work, share)
    if workers.first and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(source, mark.encode(), replace=True)
        try:
            export_bundle(checkpoint, path, options=options, report=lambda step: None)
        except HexgraftError:
            if not (path / MANIFEST).is_file():  # else another run in this folder was faster
                raise
    workers.wait()
    try:
        bundle = open_bundle(path)
        bundle.verify()
    except BundleError as error:
        raise BundleError(
            error.message, f"remove it and run again, which makes it anew: rm -r {quote(str(path))}"
        ) from error
    made = bundle.manifest.provenance["target"]
    if (made.checkpoint, made.format) != (checkpoint.origin, checkpoint.source_format):
        raise UsageError(
            f"{path} is a bundle of {made.checkpoint} ({made.format}), not of {checkpoint.origin} "
            f"({checkpoint.source_format})",
            "name another folder with --work",
        )
    if source.is_file() and source.read_text() != mark:
        raise UsageError(
            f"{target} has other weights, or another config.json, than when {path} was made of it",
            f"name another folder with --work, or begin anew: rm -r {quote(str(work))}",
        )
    return bundle
