"""Folders for tests to push, and what of them is on the phone."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.store import Folder, Piece, Store
from hexgraft.host.loopback.device import LoopbackDevice

SIZE = 6_000_000


def piece(path: Path, content: bytes, executable: bool = False) -> Piece:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return Piece(path, len(content), hashlib.sha256(content).hexdigest(), executable)


def folder_of(pieces: dict[str, Piece], kind: str = "bundles") -> Folder:
    return Folder(kind, hashlib.sha256(repr(sorted(pieces.items())).encode()).hexdigest(), pieces)


def mixed_folder(tmp_path: Path) -> Folder:
    """A large file, a small one of an odd name, a program and an empty file."""
    data = random.Random(5).randbytes(SIZE)
    return folder_of(
        {
            "weights.bin": piece(tmp_path / "weights.bin", data),
            "target/a b's ü$.json": piece(tmp_path / "name", b"{}"),
            "tool": piece(tmp_path / "tool", b"#!/bin/sh\necho works\n", executable=True),
            "empty": piece(tmp_path / "empty", b""),
        }
    )


def on_phone(device: LoopbackDevice, phone: Phone, folder: Folder) -> dict[str, bytes]:
    """The files that count, by name."""
    place = device.sandbox.path(Store(phone).path(folder))
    files = [file for file in place.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


def ours(folder: Folder) -> dict[str, bytes]:
    return {name: piece.source.read_bytes() for name, piece in folder.pieces.items()}
