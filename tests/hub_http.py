"""The servers of the stand-in for Qualcomm AI Hub: its API, and the storage behind presigned addresses."""

from __future__ import annotations

import re
import sys
import threading
import time
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from qai_hub import public_api_pb2 as pb

if TYPE_CHECKING:
    from hub_service import HubServer

TOKEN = "c0ffee5ecre7c0ffee5ecre7c0ffee5ecre7dead"
SIGNATURE = "5167a7ure"
DEVICES = (
    ("Samsung Galaxy S24", "14", 57, "v75", "sm8650", True),
    ("Samsung Galaxy S25", "15", 69, "v79", "sm8750", True),
    ("RB3 Gen 2", "1", 93, "v68", "qcs6490", False),
    ("Toaster of the Future", "1", 999, "v99", "xy9999", True),
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(hub: HubServer, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
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


class Api(_Handler):
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
        result = self.hub.workshop.results.get(name)
        if result is None:
            self.missing()
        else:
            self.send(result)

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


class Storage(_Handler):
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
