"""A stand-in for Qualcomm AI Hub on 127.0.0.1, speaking the client's own protobuf; faults on demand.

Two servers, as with the service: the API, which wants the token, and the storage that its presigned addresses
lead to, which must never see it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import qai_hub
from click.testing import Result
from command import hexgraft
from hub_http import SIGNATURE, TOKEN, Api, Storage, serve
from hub_jobs import Broken, Workshop
from qai_hub import public_api_pb2 as pb


@dataclass
class Fault:
    """What to do with the next `times` requests whose "METHOD path" matches. `status` answers with it and
    `body`; `lose` does the work and cuts the answer off; `hang` waits so long before the work, `stall`
    before the answer."""

    match: str
    times: int = 1
    status: int = 0
    body: str = ""
    lose: bool = False
    hang: float = 0.0
    stall: float = 0.0


@dataclass
class HubServer:
    """`jobs` and `models` are what was created, `seen` every request line; `slow` holds jobs back until it
    is set again. With `credentials` files go by S3's own protocol instead of presigned addresses, which the
    client does by itself if AWS_ENDPOINT_URL_S3 leads to `storage`."""

    folder: Path
    faults: list[Fault] = field(default_factory=list)
    jobs: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    fail_jobs: dict[str, str] = field(default_factory=dict)
    forget: set[str] = field(default_factory=set)
    credentials: bool = False
    open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.open.set()
        self.workshop = Workshop(self.folder)
        self.api = serve(self, Api)
        self.storage = serve(self, Storage)

    @property
    def config(self) -> qai_hub.client.ClientConfig:
        url = f"http://127.0.0.1:{self.api.server_port}"
        return qai_hub.client.ClientConfig(api_token=TOKEN, api_url=url, web_url=url)

    def ini(self, path: Path) -> Path:
        """A configuration file of the client that leads here."""
        lines = [f"{key} = {getattr(self.config, key)}" for key in ("api_token", "api_url", "web_url")]
        path.write_text("[api]\n" + "\n".join(lines) + "\nverbose = True\n", encoding="utf-8")
        return path

    def close(self) -> None:
        self.open.set()
        for server in (self.api, self.storage):
            server.shutdown()
            server.server_close()

    def of_kind(self, kind: str) -> list[Any]:
        """Jobs by the name of their protobuf field: "compile_job", "link_job", "inference_job"."""
        return [getattr(job, kind) for job in self.jobs.values() if job.WhichOneof("job") == kind]

    def fault_for(self, line: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.match, line):
                    fault.times -= 1
                    return fault
        return None

    def address(self, place: str) -> str:
        return f"http://127.0.0.1:{self.storage.server_port}/{place}?X-Signature={SIGNATURE}"

    def key_to(self, place: str, filename: str = "") -> Any:
        """Short-lived credentials for one object."""
        return pb.S3Credentials(
            bucket="shelf",
            key=place,
            filename=filename,
            region="us-west-2",
            access_key_id="AKIALOOPBACK",
            secret_access_key=SIGNATURE,
            session_token=SIGNATURE,
        )

    def new_id(self, letter: str) -> str:
        with self.lock:
            self._count = getattr(self, "_count", 0) + 1
            return f"{letter}{self._count:05d}"

    # ------------------------------------------------------------- jobs

    def submit(self, job: Any) -> str:
        kind = job.WhichOneof("job")
        inner = getattr(job, kind)
        job_id = self.new_id("j")
        setattr(inner, f"{kind}_id", job_id)
        inner.job_state = pb.JOB_STATE_CREATED
        inner.creation_time.seconds = int(time.time())
        job.hub_version = "stand-in"
        if kind == "compile_job":
            inner.device.CopyFrom(inner.devices.devices[0])
        if kind != "inference_job":
            target = pb.Model(model_id=self.new_id("m"), name=inner.name, producer_id=job_id)
            target.model_type = (
                pb.MODEL_TYPE_QNN_DLC if kind == "compile_job" else pb.MODEL_TYPE_QNN_CONTEXT_BINARY
            )
            self.models[target.model_id] = target
            inner.target_model.CopyFrom(target)
        self.jobs[job_id] = job
        threading.Thread(target=self._work, args=(kind, inner), daemon=True).start()
        return job_id

    def _work(self, kind: str, inner: Any) -> None:
        self.open.wait()
        inner.job_state = pb.JOB_STATE_OPTIMIZING_MODEL
        try:
            for match, reason in list(self.fail_jobs.items()):
                if re.search(match, inner.name):
                    raise Broken(reason)
            work: Callable[[Any], None] = getattr(self, f"_{kind}")
            work(inner)
            inner.job_state = pb.JOB_STATE_DONE
        except Exception as error:
            inner.failure_reason = str(error) or repr(error)
            inner.job_state = pb.JOB_STATE_FAILED

    def _compile_job(self, job: Any) -> None:
        self.workshop.compile(job.model.model_id, job.target_model.model_id, job.options)

    def _link_job(self, job: Any) -> None:
        sources = [model.model_id for model in job.models.models]
        target = self.models[job.target_model.model_id]
        attributes = dict(text.split(":", 1) for text in job.device.attributes)
        facts = self.workshop.link(sources, target.model_id, job.options, int(attributes["soc-model"]))
        target.input_spec.CopyFrom(facts.inputs)
        target.output_spec.CopyFrom(facts.outputs)
        entries = {
            pb.MODEL_METADATA_KEY_QAIRT_SDK_VERSION: facts.qairt,
            pb.MODEL_METADATA_KEY_QNN_CONTEXT_BIN_HEXAGON_VERSION: attributes["hexagon"],
        }
        for key, value in entries.items():
            target.metadata.entries[key] = value

    def _inference_job(self, job: Any) -> None:
        made = self.new_id("d")
        seconds = self.workshop.infer(job.model.model_id, job.dataset.dataset_id, made, job.options)
        self.datasets[made] = pb.Dataset(dataset_id=made, name=job.name, file_upload_complete=True)
        job.execution_time = seconds[0]
        detail = pb.ProfileDetail(major_version=1, minor_version=2, execution_time=seconds[0])
        detail.all_execution_times.extend(seconds)
        result = pb.InferenceJobResult(inference_job_id=job.inference_job_id, output_dataset_id=made)
        result.detail.CopyFrom(detail)
        self.workshop.results[job.inference_job_id] = pb.JobResult(inference_job_result=result)


# ----------------------------------------------------------------- what tests ask of it

ONCE = {"compile": 2, "link": 1, "upload": 2}
"""What the small export of the tests takes, if nothing is paid for twice."""


def kinds(server: HubServer) -> dict[str, int]:
    """Jobs submitted and models uploaded so far."""
    jobs = {kind: len(server.of_kind(f"{kind}_job")) for kind in ("compile", "link")}
    return {**jobs, "upload": sum(line == "POST /api/v1/models/" for line in server.seen)}


def fail_once(server: HubServer, jobs: str, reason: str, *arguments: str | Path) -> Result:
    """A command that ends because `jobs` (a pattern of their names) fail for a `reason`, which later ones do
    not."""
    server.fail_jobs[jobs] = reason
    result = hexgraft(*arguments)
    assert result.exit_code == 1, result.output
    del server.fail_jobs[jobs]
    return result
