"""The job book: what was uploaded and submitted, so that nothing is paid for twice."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hexgraft.host.atomic_file import write_whole
from hexgraft.host.hub.errors import HubError

BOOK = "hub-jobs.json"


class JobEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One job. `job_id` is empty between the intention to submit it and the answer that it was; `model_id`
    is what it made, once it is done. `os` is the device's system, "" where an old book does not say."""

    kind: str
    name: str
    device: str
    options: str
    job_id: str = ""
    url: str = ""
    model_id: str = ""
    os: str = ""


class UploadEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A model that AI Hub has."""

    name: str
    model_id: str
    size: int


class _Pages(msgspec.Struct, forbid_unknown_fields=True):
    service: str
    uploads: dict[str, UploadEntry] = {}
    jobs: dict[str, JobEntry] = {}


class JobBook:
    """A file in `folder`, written at every change. Uploads go by the sha256 of what was uploaded, jobs by
    that of all that went into them. What another service (an address) was told does not count."""

    def __init__(self, folder: Path, service: str) -> None:
        self._path = folder / BOOK
        self._pages = _Pages(service)
        if self._path.is_file():
            try:
                found = msgspec.json.decode(self._path.read_bytes(), type=_Pages)
            except msgspec.DecodeError as error:
                raise HubError(
                    f"{self._path} is not a job book: {error}",
                    "remove it, if its jobs may be submitted once more",
                ) from error
            if found.service == service:
                self._pages = found

    @property
    def uploads(self) -> dict[str, UploadEntry]:
        return self._pages.uploads

    @property
    def jobs(self) -> dict[str, JobEntry]:
        return self._pages.jobs

    @property
    def service(self) -> str:
        return self._pages.service

    def save(self) -> None:
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(self._pages), indent=1), replace=True)


def digest_of(*parts: str | bytes) -> str:
    """One sha256 over several texts, none of which runs into the next."""
    total = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        total.update(len(raw).to_bytes(8, "little"))
        total.update(raw)
    return total.hexdigest()


@contextmanager
def work_folder(bundle: Path) -> Iterator[Path]:
    """The folder beside a bundle where its jobs are noted, held by one process at a time."""
    folder = bundle.resolve().parent / f".{bundle.resolve().name}.hub"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError(
                f"another command uses the jobs of {bundle}", "wait for it, or interrupt it"
            ) from None
        yield folder
