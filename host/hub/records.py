"""What a bundle keeps of the jobs that made it: hub.json, one of its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hexgraft.host.bundle import Bundle
from hexgraft.host.hub.book import JobEntry
from hexgraft.models.errors import BundleError

RECORDS = "hub.json"


class HubRecord(msgspec.Struct, forbid_unknown_fields=True):
    """One context binary: the device it was linked for, the model AI Hub has of it, and its jobs."""

    binary: str
    device: str
    model_id: str
    jobs: list[JobEntry]


class HubRecords(msgspec.Struct, forbid_unknown_fields=True):
    """All binaries that the AI Hub at `service` made."""

    service: str
    binaries: list[HubRecord]


def write_records(records: HubRecords, folder: Path) -> Path:
    """The written file."""
    path = folder / RECORDS
    path.write_bytes(msgspec.json.format(msgspec.json.encode(records), indent=1) + b"\n")
    return path


def read_records(bundle: Bundle) -> HubRecords | None:
    """The records of a bundle; None for one that was compiled elsewhere."""
    if RECORDS not in bundle.manifest.files:
        return None
    try:
        return msgspec.json.decode(bundle.file(RECORDS).read_bytes(), type=HubRecords)
    except msgspec.DecodeError as error:
        raise BundleError(
            f"{bundle.file(RECORDS)} holds no records of AI Hub: {error}", "export again"
        ) from error
