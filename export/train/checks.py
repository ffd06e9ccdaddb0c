"""What can be said against a training before anything is written for it."""

from __future__ import annotations

from pathlib import Path

from hexgraft.export.train.begun_head import open_begun
from hexgraft.export.train.dataset import check_rows
from hexgraft.export.train.generate import Plan, wave_numbers
from hexgraft.export.train.head_file import free_bytes
from hexgraft.export.train.job import Job, check_written
from hexgraft.export.train.small_net import check_small
from hexgraft.export.train.work import WAVES
from hexgraft.host.layout import is_joined, is_vendor
from hexgraft.host.manifest import ModelEntry
from hexgraft.models.errors import UsageError


def check_job(model: ModelEntry, job: Job, work: Path, share: tuple[int, int]) -> None:
    """Raise UsageError where `job` cannot be done for the target `model`: it has no graph to train with, or
    less than is asked for, or too little text is, or more than fits on the disk of `work`. `share` is the
    part (i of n) of the text that this process writes."""
    _check_graph(model)
    plan = job.plan(model.layers, model.context)
    if job.kind == "head":
        if min(plan.features) < 1:
            raise UsageError(
                f"a target of {model.layers} layers has not the three states that a head reads",
                "use --kind small --layers 2",
            )
        if job.start is None:
            check_rows(job.rows, model.vocab)
        else:
            open_begun(job.start, model)
    else:
        check_small(model, job.layers)
    if job.tokens is not None:
        check_written(job.tokens)
    waves = share[0] + 1 if job.waves is None else job.waves  # of a job that time ends, the first at least
    _check_space(plan, model.hidden, waves, work, share)


def _check_graph(model: ModelEntry) -> None:
    """Training runs the CPU's graph by torch, which knows its operators and float32 weights alone."""
    if is_vendor(model):
        what = "its graphs are the vendor's"
    elif model.cpu_precision is None:
        what = "it has none for the CPU"
    elif model.cpu_precision != "fp32":
        what = f"its graph for the CPU is {model.cpu_precision}"
    elif is_joined(model):
        what = "its attention is fused"
    else:
        return
    raise UsageError(
        f"{model.name} cannot be trained for in this bundle: {what}",
        "give the checkpoint it was made of, or a bundle exported without --cpu-precision and "
        "--cpu-attention",
    )


def _check_space(plan: Plan, hidden: int, count: int, work: Path, share: tuple[int, int]) -> None:
    wanted = range(share[0], count, share[1])
    written = sum(number in wanted for number in wave_numbers(work / WAVES))
    need = (len(wanted) - written) * plan.wave_bytes(hidden)
    free = free_bytes(work)
    if need > free:
        raise UsageError(
            f"the texts and their states take up to {need / 1e6:,.0f} MB, "
            f"{work} has {free / 1e6:,.0f} MB free",
            "use fewer --tokens, or name a folder on another disk with --work",
        )
