"""`hexgraft pull-trace`: records of runs come whole or not at all, over links that break."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from device_command import Hexgraft, run_words
from phones import Connect

from hexgraft.host.adb.errors import CommandFailed, ConnectionLost, TransferFailed
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.pull import Puller, RunFile, run_files
from hexgraft.host.adb.run_record import read_record
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import FAILED, NO_DEVICE, HexgraftError, UsageError

SIZE = 3_000_000


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


@pytest.fixture
def runs(device: LoopbackDevice) -> Path:
    folder = device.sandbox.path("/data/local/tmp/hexgraft/runs")
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(random.Random(3).randbytes(SIZE))
    return folder


def test_a_record_is_fetched_once(phone: Phone, runs: Path, tmp_path: Path) -> None:
    (file,) = run_files(phone)
    puller = Puller(phone, tmp_path)
    path = puller.pull(file)
    assert path.read_bytes() == (runs / "a.jsonl").read_bytes()
    assert puller.received == SIZE
    assert puller.pull(file) == path
    assert puller.received == SIZE
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_broken_transfer_goes_on(phone: Phone, device: LoopbackDevice, runs: Path, tmp_path: Path) -> None:
    (file,) = run_files(phone)
    device.link.cut_after(1_000_000)
    with pytest.raises(ConnectionLost):
        Puller(phone, tmp_path, retries=1).pull(file)
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl.part"]
    there = (tmp_path / "a.jsonl.part").stat().st_size
    assert there > 0
    phone.wait(30)
    device.link.cut_after(1_000_000)
    puller = Puller(phone, tmp_path)
    assert puller.pull(file).read_bytes() == (runs / "a.jsonl").read_bytes()
    assert puller.received == SIZE - there
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_what_is_there_of_something_else_is_not_gone_on_with(
    phone: Phone, runs: Path, tmp_path: Path
) -> None:
    (file,) = run_files(phone)
    for wrong in (b"x" * 1000, b"x" * (SIZE + 5)):
        (tmp_path / "a.jsonl.part").write_bytes(wrong)
        (tmp_path / "a.jsonl").unlink(missing_ok=True)
        assert Puller(phone, tmp_path).pull(file).read_bytes() == (runs / "a.jsonl").read_bytes()


def test_a_record_that_grows(phone: Phone, runs: Path, tmp_path: Path) -> None:
    """As many bytes as it had are a whole file; later the rest replaces it."""
    (file,) = run_files(phone)
    with (runs / "a.jsonl").open("ab") as out:
        out.write(b"more")
    path = Puller(phone, tmp_path).pull(file)
    assert path.stat().st_size == SIZE
    (file,) = run_files(phone)
    assert Puller(phone, tmp_path).pull(file).read_bytes() == (runs / "a.jsonl").read_bytes()


def test_other_files_are_not_replaced(phone: Phone, runs: Path, tmp_path: Path) -> None:
    (file,) = run_files(phone)
    (tmp_path / "a.jsonl").write_text("my own")
    with pytest.raises(UsageError, match="exists already and is no part of it"):
        Puller(phone, tmp_path).pull(file)
    assert (tmp_path / "a.jsonl").read_text() == "my own"
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(HexgraftError, match="cannot write"):
        Puller(phone, tmp_path / "none").pull(file)


def test_a_byte_flipped_on_the_way(
    phone: Phone, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = run_files(phone)
    flips = [1]
    received = Puller._receive

    def flip(self: Puller, file: RunFile, part: Path) -> None:
        received(self, file, part)
        if flips and flips.pop():
            whole = part.read_bytes()
            part.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])

    monkeypatch.setattr(Puller, "_receive", flip)
    assert Puller(phone, tmp_path).pull(file).read_bytes() == (runs / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").unlink()
    flips[:] = [1, 1]
    with pytest.raises(TransferFailed, match="arrived altered twice"):
        Puller(phone, tmp_path).pull(file)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_is_gone(phone: Phone, runs: Path, tmp_path: Path) -> None:
    (file,) = run_files(phone)
    (runs / "a.jsonl").unlink()
    with pytest.raises(CommandFailed, match="is no longer on"):
        Puller(phone, tmp_path).pull(file)


def test_the_command(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, tmp_path: Path) -> None:
    result = hexgraft("pull-trace")
    assert result.code == FAILED
    assert "no run has left a record on SM S928B" in result.err
    for _ in range(10):
        assert hexgraft(*run_words(bundle, "abc", "--backend", "device", "--plain")).code == 0
    result = hexgraft("pull-trace", "-o", str(tmp_path / "last"))
    assert result.code == 0
    path = Path(result.out.strip())
    assert path.parent == tmp_path / "last"
    assert "ended: bye" in result.err
    assert "target 24 passes of 1 rows" in result.err
    record = read_record(path)
    assert sum(each.count for each in record.passes) == 25
    assert record.errors == []
    assert record.started is not None
    # Eight are kept, and all of them come.
    result = hexgraft("pull-trace", "-o", str(tmp_path / "all"), "--all", "--json")
    assert len(result.json) == 8
    assert result.json[0]["ended"] == "bye"
    assert {Path(each["path"]).name for each in result.json} == {
        file.name for file in (tmp_path / "all").iterdir()
    }


def test_the_record_of_a_run_whose_link_was_lost(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, tmp_path: Path
) -> None:
    hexgraft("push", str(bundle.path))
    device.link.cut_after(40_000)
    words = ["run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "300", "--plain"]
    lost = hexgraft(*words, "--backend", "device")
    open_phone(device.serial).wait(30)
    (record,) = hexgraft("pull-trace", "-o", str(tmp_path), "--json").json
    assert record["ended"] in ("hang-up", "end of input", "host gone", "end of input inside a frame")
    assert sum(each["count"] for each in record["passes"]) > 10
    assert "error: the connection" in lost.err


def test_records_hold_no_text(bundle: Bundle, hexgraft: Hexgraft, device: LoopbackDevice) -> None:
    hexgraft(*run_words(bundle, "a secret", "--backend", "device", "--plain"))
    (file,) = device.sandbox.path("/data/local/tmp/hexgraft/runs").iterdir()
    text = file.read_text()
    assert "secret" not in text
    assert all("tokens" not in json.loads(line) for line in text.splitlines())


def test_without_a_phone(hexgraft: Hexgraft, connect: Connect) -> None:
    assert hexgraft("pull-trace").code == NO_DEVICE
