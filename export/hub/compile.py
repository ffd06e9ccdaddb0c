"""Compiles the graphs of an NPU build at AI Hub: a compile job a graph, a link job a binary, and the binary
where the local compiler would have put it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from hexgraft.export.htp.build import Build, Job
from hexgraft.export.htp.compile import BINARY_LIMIT
from hexgraft.export.htp.wrapper import Wrapper, write_wrapper
from hexgraft.export.hub.pack import Packed
from hexgraft.export.hub.target import HubTarget
from hexgraft.host.hub.desk import Desk, Wish
from hexgraft.host.hub.records import HubRecord, HubRecords, write_records
from hexgraft.host.hub.service import HostedDevice, ModelFacts, Tensor, temporary_files_in
from hexgraft.models.errors import ExportError

_FLOAT16 = "default_graph_htp_precision=FLOAT16"


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job as --dry-run shows it. `state` is "new", or how an earlier run's stands: "running", "done", or
    "failed" and "lost", which are submitted again; `upload` the bytes to send first, 0 where AI Hub has
    them."""

    kind: str
    title: str
    device: str
    options: str
    state: str
    upload: int

    @property
    def submitted(self) -> bool:
        """Whether the export would submit it."""
        return self.state not in ("running", "done")


class HubCompiler:
    """Takes the local compiler's place in an export. `desk` may be None for a dry run without an account."""

    def __init__(self, desk: Desk | None, target: HubTarget, say: Callable[[str], None], dry: bool) -> None:
        self._desk, self._target, self._say = desk, target, say
        self.dry = dry
        self.planned: list[PlannedJob] = []
        self._records: list[HubRecord] = []
        self._packed: dict[Path, Packed] = {}
        self._uploads: set[str] = set()

    @property
    def identity(self) -> Any:
        """What stages depend on beside the graphs."""
        devices = {soc: [device.name, device.os] for soc, device in self._target.devices.items()}
        return ["aihub", devices, self._target.qairt]

    # ------------------------------------------------------------- wishes

    def _compiling(self, build: Build, job: Job, graph: tuple[int, int, int]) -> tuple[Wish, Packed]:
        file = build.work_file(*graph)
        packed = self._packed.get(file)
        if packed is None:
            packed = self._packed[file] = Packed(file, build.graph_name(*graph))
        outputs = ",".join(value.name for value in packed.outputs)
        options = [
            "--target_runtime qnn_dlc",
            *self._common(),
            f"--output_names {outputs}",
            f"--qnn_options {';'.join((f'context_enable_graphs={packed.name}', *_settings(build)))}",
        ]
        title = f"{packed.name} {job.soc.name.lower()} {build.variant.tag}"
        return Wish("compile", title, self._device(job), " ".join(options), (packed.digest,)), packed

    def _linking(self, build: Build, job: Job) -> Wish:
        compiled = tuple(self._compiling(build, job, graph)[0].key for graph in job.graphs)
        options = self._common()
        if settings := _settings(build):
            options.append(f"--qnn_options {';'.join(settings)}")
        title = f"{job.name} {job.soc.name.lower()} {build.variant.tag}"
        return Wish("link", title, self._device(job), " ".join(options), compiled)

    def _common(self) -> list[str]:
        return [f"--qairt_version {self._target.qairt}"] if self._target.qairt else []

    def _device(self, job: Job) -> HostedDevice:
        return self._target.devices[job.soc.name]

    # ------------------------------------------------------------- the work

    def prepare(self, build: Build, jobs: Sequence[Job]) -> None:
        """Submit everything these binaries need before waiting for any of it. A dry run only notes it."""
        if self.dry or self._desk is None:
            self._plan(build, jobs)
            return
        desk = self._desk
        # What is linked, or being linked, needs nothing of what it is made of.
        open_jobs = [job for job in jobs if not desk.stands(self._linking(build, job))]
        wishes = self._compiled(build, open_jobs)
        for wish, packed in wishes.values():
            desk.submit(wish, partial(self._upload, desk, packed, build.bundle.path.parent / "upload"))
        made = desk.wait([wish for wish, _ in wishes.values()])
        for job in open_jobs:
            link = self._linking(build, job)
            desk.submit(link, partial(_made_by, made, link))
        desk.wait([self._linking(build, job) for job in jobs])

    def _compiled(self, build: Build, jobs: Sequence[Job]) -> dict[str, tuple[Wish, Packed]]:
        """The compile jobs of some binaries, each once."""
        wishes = [self._compiling(build, job, graph) for job in jobs for graph in job.graphs]
        return {wish.key: (wish, packed) for wish, packed in wishes}

    def _upload(self, desk: Desk, packed: Packed, folder: Path) -> list[str]:
        """Pack in `folder`, which is the unfinished export's: what a killed one leaves goes with it."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            with temporary_files_in(folder):
                return [desk.upload(packed.digest, packed.name, partial(packed.write, folder))]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _plan(self, build: Build, jobs: Sequence[Job]) -> None:
        links = [self._planned(self._linking(build, job), None) for job in jobs]
        unlinked = [job for job, link in zip(jobs, links, strict=True) if link.submitted]
        for wish, packed in self._compiled(build, unlinked).values():
            self.planned.append(self._planned(wish, packed))
        self.planned += links

    def _planned(self, wish: Wish, packed: Packed | None) -> PlannedJob:
        job_id, found = self._desk.look(wish) if self._desk else ("", None)
        state = found.state if found is not None else "lost" if job_id else "new"
        planned = PlannedJob(wish.kind, wish.title, wish.device.name, wish.options, state, 0)
        held = self._desk.book.uploads if self._desk else {}
        if packed is None or not planned.submitted or packed.digest in {*held, *self._uploads}:
            return planned
        self._uploads.add(packed.digest)
        return replace(planned, upload=packed.size)

    def compile(self, build: Build, job: Job) -> dict[str, str]:
        """Download a linked binary and write the wrappers of its graphs; its QAIRT release."""
        if self._desk is None:
            raise ExportError("there is no AI Hub account to compile with", "leave out --dry-run")
        link = self._linking(build, job)
        model_id = self._desk.wait([link])[link.key]
        facts = self._desk.service.facts(model_id)
        folder = build.bundle.path / job.folder
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".compile-") as scratch:
            binary = Path(scratch) / f"{job.name}.bin"
            self._desk.service.download(model_id, binary, binary.name)
            self._check(job, binary, facts)
            told = facts.properties
            # Where it is not told, what was asked for is what it was made by.
            qairt = told.get("QAIRT_SDK_VERSION") or told.get("QNN_SDK_VERSION") or self._target.qairt
            if not qairt:
                raise ExportError(
                    f"AI Hub does not say which QAIRT release made {binary.name}", "name one with --qairt"
                )
            names = {}
            for graph in job.graphs:
                _, packed = self._compiling(build, job, graph)
                names[packed.name] = graph_inside(packed, facts, binary)
                wrapper = Wrapper(names[packed.name], binary.name, qairt)
                write_wrapper(Path(scratch) / f"{packed.name}.onnx", wrapper, packed.inputs, packed.outputs)
            for file in (binary, *(Path(scratch) / f"{name}.onnx" for name in names)):
                file.rename(folder / file.name)
        size = (folder / binary.name).stat().st_size
        self._say(f"{link.title}: {binary.name} has {size / 1e6:.1f} MB, made by QAIRT {qairt}")
        return {"qairt": qairt}

    def _check(self, job: Job, binary: Path, facts: ModelFacts) -> None:
        size = binary.stat().st_size
        if size > BINARY_LIMIT:
            raise ExportError(
                f"the binary {job.name} has {size / 1e9:.2f} GB, a context binary holds at most 2",
                "split the model with a smaller --part-size",
            )
        arch = re.search(r"\d+", facts.properties.get("QNN_CONTEXT_BIN_HEXAGON_VERSION", ""))
        if arch and int(arch[0]) != job.soc.arch:
            raise ExportError(
                f"AI Hub compiled {job.name} for V{arch[0]}, {job.soc.title} is another generation",
                "name a device with that chip: --device NAME",
            )

    def keep(self, build: Build, job: Job) -> None:
        """Note a binary's jobs for the bundle."""
        if self._desk is None:
            raise ExportError("there is no AI Hub account to compile with", "leave out --dry-run")
        link, jobs = self._linking(build, job), self._desk.book.jobs
        if link.key not in jobs:  # the stage was finished, and then the book was removed
            self._say(f"{link.title}: the job book does not hold its jobs any more, hub.json goes without")
            return
        wishes = [*(self._compiling(build, job, graph)[0] for graph in job.graphs), link]
        record = HubRecord(
            binary=(job.folder / f"{job.name}.bin").as_posix(),
            device=link.device.name,
            model_id=jobs[link.key].model_id,
            jobs=[jobs[wish.key] for wish in wishes if wish.key in jobs],
        )
        self._records.append(record)

    def write_records(self, bundle: Path) -> list[str]:
        """Write hub.json into the bundle."""
        if self._desk is None:
            return []
        return [write_records(HubRecords(self._desk.book.service, self._records), bundle).name]


def _settings(build: Build) -> list[str]:
    """How the NPU is to run a graph: what is float in fp16, on chips that have it."""
    settings = [] if build.variant.precision.integer else [_FLOAT16]
    if build.htp.vtcm_mb is not None:
        settings.append(f"default_graph_htp_vtcm_size={build.htp.vtcm_mb}")
    return settings


def _made_by(made: Mapping[str, str], link: Wish) -> list[str]:
    return [made[key] for key in link.content]


def graph_inside(packed: Packed, facts: ModelFacts, binary: Path) -> str:
    """The name a packed graph has inside the binary: its own, or that of the one graph with the same inputs
    and outputs. Raises ExportError if there is none, or if its tensors are not those that were sent."""
    wanted = _border(packed)
    if not facts.graphs:
        if packed.name.encode() in binary.read_bytes():
            return packed.name
        raise ExportError(
            f"{binary.name} holds no graph named {packed.name}, and AI Hub does not say what it holds",
            "pip install --upgrade qai-hub, then run the same command again",
        )
    if packed.name in facts.graphs:
        found = _told(facts.graphs[packed.name], wanted)
        if found != wanted:
            raise ExportError(f"AI Hub changed {packed.name}: {_difference(wanted, found)}", _UNCHANGED)
        return packed.name
    same = [name for name, told in facts.graphs.items() if _told(told, wanted) == wanted]
    if len(same) != 1:
        nearest = _told(next(iter(facts.graphs.values())), wanted)
        raise ExportError(
            f"{binary.name} holds no graph {packed.name} but {', '.join(facts.graphs)}: "
            f"{_difference(wanted, nearest)}",
            _UNCHANGED,
        )
    return same[0]


_UNCHANGED = "hexgraft needs inputs and outputs as it sent them; try another --qairt"

Border = Mapping[str, tuple[str, tuple[int, ...]]]


def _border(packed: Packed) -> Border:
    """Name -> (type, shape) of all inputs and outputs."""
    border = {}
    for value in (*packed.inputs, *packed.outputs):
        kind = value.type.tensor_type
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        border[value.name] = dtype, tuple(dim.dim_value for dim in kind.shape.dim)
    return border


def _told(told: tuple[list[Tensor], list[Tensor]], wanted: Border) -> Border:
    """The same of a graph as AI Hub tells it; a shape it leaves out is taken as wanted."""
    return {
        tensor.name: (tensor.dtype, tensor.shape or wanted.get(tensor.name, ("", ()))[1])
        for tensors in told
        for tensor in tensors
    }


def _difference(wanted: Border, found: Border) -> str:
    for name, border in wanted.items():
        if name not in found:
            return f"{name} is gone"
        if found[name] != border:
            ours, theirs = (f"{kind} {list(shape)}" for kind, shape in (border, found[name]))
            return f"{name} is {theirs} and not {ours}"
    extra = sorted(set(found) - set(wanted))
    return f"{extra[0]} is new" if extra else "it has them all"
