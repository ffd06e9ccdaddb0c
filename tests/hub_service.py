"""A stand-in for Qualcomm AI Hub on 127.0.0.1, speaking the client's own protobuf; faults on demand.

Two servers, as with the service: the API, which wants the token, and the storage that its presigned addresses
lead to, which must never see it.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import qai_hub
from hub_jobs import Broken, Workshop
from qai_hub import public_api_pb2 as pb

TOKEN = "c0ffee5ecre7c0ffee5ecre7c0ffee5ecre7dead"
SIGNATURE = "5167a7ure"
DEVICES = (
    ("Samsung Galaxy S24", "14", 57, "v75", "sm8650", True),
    ("Samsung Galaxy S25", "15", 69, "v79", "sm8750", True),
    ("RB3 Gen 2", "1", 93, "v68", "qcs6490", False),
    ("Toaster of the Future", "1", 999, "v99", "xy9999", True),
)


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
class _Job:
    pb: Any
    polls: int = 0
    thread: threading.Thread | None = None


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
        self.api = _serve(self, _Api)
        self.storage = _serve(self, _Storage)

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
            for match, reason in self.fail_jobs.items():
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _serve(hub: HubServer, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    bound = type(handler.__name__, (handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), bound)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle_request(self) -> None:
        split = urlsplit(self.path)
        line = f"{self.command} {split.path}"
        self.query = parse_qs(split.query)
        self.parts = [part for part in split.path.split("/") if part]
        body = self._body()
        self.hub.seen.append(line)
        self.lost, self.stall = False, 0.0
        fault = self.hub.fault_for(line)
        if fault is not None and fault.hang:
            time.sleep(fault.hang)
        if fault is not None and fault.status:
            self.reply(fault.body.encode(), "application/json", fault.status)
            return
        self.lost = fault is not None and fault.lose
        self.stall = fault.stall if fault is not None else 0.0
        if not self.admitted():
            return
        self.answer(body)

    do_HEAD = do_GET = do_POST = do_PUT = do_PATCH = handle_request

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(self, body: bytes, kind: str, status: int = 200, **headers: str) -> None:
        time.sleep(self.stall)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.lost:  # the answer breaks off half way
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.wfile.write(body)

    def admitted(self) -> bool:
        raise NotImplementedError

    def answer(self, body: bytes) -> None:
        raise NotImplementedError


class _Api(_Handler):
    def admitted(self) -> bool:
        if self.headers.get("Authorization") == f"token {TOKEN}":
            return True
        self.reply(b'{"detail": "Invalid token."}', "application/json", 401)
        return False

    def send(self, message: Any, status: int = 200) -> None:
        self.reply(message.SerializeToString(), "application/x-protobuf", status)

    def missing(self) -> None:
        self.reply(b'{"detail": "Not found."}', "application/json", 404)

    def answer(self, body: bytes) -> None:
        route = "_".join([self.command.lower(), *(part for part in self.parts[2:] if not self._is_id(part))])
        found = [part for part in self.parts[2:] if self._is_id(part)]
        if found and (found[0] in self.hub.forget or not self._known(found[0])):
            self.missing()
            return
        work = getattr(self, route, None)
        if work is None:
            self.reply(f"no route {route}".encode(), "text/plain", 404)
            return
        work(body, *found)

    @staticmethod
    def _is_id(part: str) -> bool:
        return re.fullmatch(r"[jmd]\d{5}", part) is not None

    def _known(self, name: str) -> bool:
        return name in self.hub.jobs or name in self.hub.models or name in self.hub.datasets

    def created(self, name: str) -> None:
        response = pb.CreateUpdateResponse(id=name)
        response.creation_time.seconds = int(time.time())
        response.expiration_time.seconds = int(time.time()) + 30 * 86400
        self.send(response, 201)

    # ------------------------------------------------------------- routes

    def get_users_auth_user(self, body: bytes) -> None:
        self.send(pb.User(id=1, first_name="Ada", email="ada@example.org", token=TOKEN))

    def get_frameworks(self, body: bytes) -> None:
        listed = pb.FrameworkList()
        for version, tags in (("2.40", ["default"]), (self.hub.workshop.release, ["latest"])):
            listed.frameworks.add(
                name="QAIRT", api_version=version, api_tags=tags, full_version=f"{version}.0"
            )
        self.send(listed)

    def get_devices(self, body: bytes) -> None:
        listed = pb.DeviceList()
        name, os = (self.query.get(key, [""])[0] for key in ("name", "os"))
        for device, system, soc, hexagon, chip, fp16 in DEVICES:
            if name in ("", device) and os in ("", system):
                attributes = [f"soc-model:{soc}", f"hexagon:{hexagon}", f"chipset:{chip}", "framework:qnn"]
                attributes += ["framework:onnx", f"htp-supports-fp16:{str(fp16).lower()}", "os:android"]
                listed.devices.add(name=device, os=system, attributes=attributes)
        self.send(listed)

    def post_models(self, body: bytes) -> None:
        model = pb.Model.FromString(body)
        model.model_id = self.hub.new_id("m")
        model.creation_time.seconds = int(time.time())
        self.hub.models[model.model_id] = model
        self.created(model.model_id)

    def get_models(self, body: bytes, name: str) -> None:
        self.send(self.hub.models[name])

    def get_models_multipart_upload(self, body: bytes, name: str) -> None:
        half = max(1, (int(self.query["file_size"][0]) + 1) // 2)  # two parts, so that both ways are walked
        urls = [self.hub.address(f"upload/{name}/{part}") for part in range(2)]
        answer = pb.FileUploadResponse()
        if self.hub.credentials:
            answer.credentials.CopyFrom(self.hub.key_to(name))
            self.send(answer)
            return
        answer.multipart_url.CopyFrom(
            pb.FileMultipartUploadURL(urls=urls, upload_id="u1", max_part_size=half)
        )
        self.send(answer)

    def post_models_multipart_upload(self, body: bytes, name: str) -> None:
        etags = list(pb.FileMultipartUploadComplete.FromString(body).etags)
        self.hub.workshop.join(name, etags)
        self.hub.models[name].file_upload_complete = True
        self.created(name)

    def post_models_upload_complete(self, body: bytes, name: str) -> None:
        self.hub.models[name].file_upload_complete = True
        self.created(name)

    def get_models_download(self, body: bytes, name: str) -> None:
        answer = pb.FileDownloadResponse()
        if self.hub.credentials:
            answer.credentials.CopyFrom(self.hub.key_to(name, f"{name}.bin"))
            self.send(answer)
            return
        answer.url.url, answer.url.filename = self.hub.address(f"download/{name}"), f"{name}.bin"
        self.send(answer)

    def post_jobs(self, body: bytes) -> None:
        self.created(self.hub.submit(pb.Job.FromString(body)))

    def get_jobs(self, body: bytes, name: str) -> None:
        self.send(self.hub.jobs[name])

    def get_jobs_result(self, body: bytes, name: str) -> None:
        self.send(self.hub.workshop.results[name])

    def get_job_summaries(self, body: bytes) -> None:
        listed = pb.JobSummaryList()
        offset, limit = (int(self.query.get(key, ["0"])[0]) for key in ("offset", "limit"))
        for job in list(reversed(self.hub.jobs.values()))[offset : offset + limit]:
            kind = job.WhichOneof("job")
            inner = getattr(job, kind)
            summary = getattr(listed.job_summaries.add(), f"{kind}_summary")
            summary.job_id, summary.name = getattr(inner, f"{kind}_id"), inner.name
            summary.job_state = inner.job_state
        self.send(listed)

    def post_datasets(self, body: bytes) -> None:
        dataset = pb.Dataset.FromString(body)
        dataset.dataset_id = self.hub.new_id("d")
        self.hub.datasets[dataset.dataset_id] = dataset
        self.created(dataset.dataset_id)

    def get_datasets(self, body: bytes, name: str) -> None:
        self.send(self.hub.datasets[name])

    def get_datasets_upload_url(self, body: bytes, name: str) -> None:
        answer = pb.FileUploadResponse()
        answer.url.url, answer.url.file_field_name = self.hub.address(f"upload/{name}/0"), "file"
        answer.url.fields["key"] = name
        self.send(answer)

    def patch_datasets(self, body: bytes, name: str) -> None:
        self.hub.datasets[name].file_upload_complete = True
        self.created(name)

    def get_datasets_download_data(self, body: bytes, name: str) -> None:
        answer = pb.FileDownloadResponse()
        answer.url.url, answer.url.filename = self.hub.address(f"download/{name}"), f"{name}.h5"
        self.send(answer)


class _Storage(_Handler):
    def admitted(self) -> bool:
        if TOKEN in str(self.headers) + self.path:
            self.hub.leaks.append(self.path)
        if self.hub.credentials and self.headers.get("X-Amz-Security-Token") == SIGNATURE:
            return True
        if self.query.get("X-Signature") == [SIGNATURE]:
            return True
        self.reply(b"<Code>AccessDenied</Code>", "application/xml", 403)
        return False

    def answer(self, body: bytes) -> None:
        if self.parts[0] == "shelf":
            file = self.hub.workshop.file(self.parts[1])
            if self.command == "PUT":
                file.write_bytes(body)
                self.reply(b"", "text/plain", ETag=f'"{self.parts[1]}"')
                return
            self.reply(file.read_bytes(), "application/octet-stream", ETag=f'"{self.parts[1]}"')
            return
        if self.parts[0] == "download":
            self.reply(self.hub.workshop.file(self.parts[1]).read_bytes(), "application/octet-stream")
            return
        if self.command == "POST":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            form = BytesParser().parsebytes(head + body)
            (content,) = (
                part.get_payload(decode=True)
                for part in form.walk()
                if part.get_param("name", header="content-disposition") == "file"
            )
            self.hub.workshop.file(self.parts[1]).write_bytes(content)
            self.reply(b"", "text/plain", 204)
            return
        etag = self.hub.workshop.part(self.parts[1], int(self.parts[2]), body)
        self.reply(b"", "text/plain", ETag=etag)


def error_of_last(result: Any) -> tuple[str, str]:
    """Message and hint of a command that said other things first."""
    assert result.exit_code != 0
    assert "Traceback" not in result.stderr
    said = result.stderr.split("error: ", 1)[1]
    message, hint = said.split("\n\nhint: ")
    return message.strip(), hint.strip()
