"""Pushes: only what is missing, checked on the phone, and honest about every way to fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from pushed import SIZE, folder_of, mixed_folder, on_phone, ours, piece

from hexgraft.host.adb.errors import CommandFailed, NoSpace
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.push import Pusher
from hexgraft.host.adb.store import Folder, Store
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import FAILED, BundleError


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return mixed_folder(tmp_path)


def test_everything_arrives_and_runs(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    seen: dict[str, int] = {}
    pusher = Pusher(phone, lambda name, done, total: seen.__setitem__(name, done))
    pushed = pusher.push(folder)
    assert on_phone(device, phone, folder) == ours(folder)
    assert (pushed.files, pushed.sent, pushed.lost) == (4, folder.size, 0)
    assert seen == {name: piece.size for name, piece in folder.pieces.items()}
    assert phone.run(Store(phone).path(folder, "tool")).stdout == "works\n"


def test_a_second_push_moves_nothing(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    Pusher(phone).push(folder)
    before = device.link.received
    pushed = Pusher(phone).push(folder)
    assert (pushed.files, pushed.sent, pushed.kept) == (0, 0, folder.size)
    assert device.link.received - before < 10_000


def test_a_file_that_changed_on_the_phone_is_put_right(
    phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    Pusher(phone).push(folder)
    file = device.sandbox.path(Store(phone).path(folder, "weights.bin"))
    content = bytearray(file.read_bytes())
    content[1234] ^= 1
    file.write_bytes(content)
    pushed = Pusher(phone).push(folder)
    assert (pushed.files, pushed.sent) == (1, SIZE)
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_file_touched_but_right_is_not_sent_again(
    phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    Pusher(phone).push(folder)
    phone.run(f"touch {Store(phone).path(folder, 'weights.bin')}")
    assert not Store(phone).is_whole(folder)
    pushed = Pusher(phone).push(folder)
    assert pushed.sent == 0
    assert Store(phone).is_whole(folder)


def test_a_missing_file_is_noticed(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    Pusher(phone).push(folder)
    phone.run(f"rm {Store(phone).path(folder, 'tool')}")
    assert Pusher(phone).push(folder).files == 1


def test_an_emptied_folder_is_not_taken_for_whole(phone: Phone, folder: Folder) -> None:
    Pusher(phone).push(folder)
    phone.run(f"cd {Store(phone).path(folder)} && find . -type f -exec rm {{}} +")
    assert not Store(phone).is_whole(folder)


def test_files_another_folder_has_are_not_sent(
    phone: Phone, device: LoopbackDevice, folder: Folder, tmp_path: Path
) -> None:
    Pusher(phone).push(folder)
    other = folder_of({**folder.pieces, "new.json": piece(tmp_path / "new", b"[1]")})
    pushed = Pusher(phone).push(other)
    assert (pushed.files, pushed.sent) == (1, 3)
    assert on_phone(device, phone, other) == ours(other)
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_borrowed_file_that_went_bad_is_sent_after_all(
    phone: Phone, device: LoopbackDevice, folder: Folder, tmp_path: Path
) -> None:
    Pusher(phone).push(folder)
    device.sandbox.path(Store(phone).path(folder, "weights.bin")).write_bytes(bytes(SIZE))
    other = folder_of({**folder.pieces, "new.json": piece(tmp_path / "new", b"[1]")})
    assert Pusher(phone).push(other).sent == SIZE + 3
    assert on_phone(device, phone, other) == ours(other)


def test_a_file_that_is_not_what_the_manifest_says(phone: Phone, folder: Folder) -> None:
    """Altered here after its sha256 was taken: the phone finds out, nothing stands under the final name. It
    is sent once, and no cable is blamed."""
    source = folder.pieces["weights.bin"].source
    source.write_bytes(b"y" + source.read_bytes()[1:])
    pusher = Pusher(phone)
    with pytest.raises(BundleError, match=r"weights\.bin is not the file it was made as") as raised:
        pusher.push(folder)
    assert raised.value.exit_code == FAILED
    assert pusher.pushed.sent == SIZE
    assert "weights.bin" not in Store(phone).sizes(folder)
    assert not Store(phone).is_whole(folder)


def test_a_file_that_became_shorter(phone: Phone, folder: Folder) -> None:
    source = folder.pieces["weights.bin"].source
    source.write_bytes(source.read_bytes()[:1000])
    with pytest.raises(BundleError, match="became shorter"):
        Pusher(phone).push(folder)


def test_too_little_space_is_said_before_anything_moves(
    phone: Phone, device: LoopbackDevice, folder: Folder, tmp_path: Path
) -> None:
    old = folder_of({"old": piece(tmp_path / "old", bytes(2_000_000))})
    Pusher(phone).push(old)
    device.set_space(8_500_000)
    before = device.link.received
    with pytest.raises(NoSpace, match=r"has 6\.5 MB free .* 6\.0 MB and a tenth more are needed") as raised:
        Pusher(phone).push(folder)
    assert raised.value.hint == "`hexgraft clean` would free 2.0 MB"
    assert device.link.received - before < 10_000
    Store(phone).remove(Store(phone).present())
    assert Pusher(phone).push(folder).files == 4


def test_a_phone_that_fills_up_meanwhile(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    """Somebody else writes: df promised what is not there. The unfinished file goes, the next push works."""

    def fill(name: str, done: int, total: int) -> None:
        if name == "weights.bin" and done > 2_000_000:
            device.set_space(3_500_000)

    with pytest.raises(NoSpace, match=r"are needed"):
        Pusher(phone, fill).push(folder)
    assert "weights.bin.part" not in Store(phone).sizes(folder)
    device.set_space(None)
    Pusher(phone).push(folder)
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_folder_from_which_nothing_runs(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    device.set_noexec(True)
    with pytest.raises(CommandFailed, match="cannot be made executable") as raised:
        Pusher(phone).push(folder)
    assert "--root" in str(raised.value.hint)
    device.set_noexec(False)
    Pusher(phone).push(folder)
    assert phone.run(Store(phone).path(folder, "tool")).stdout == "works\n"


def test_a_folder_that_cannot_be_made(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    device.sandbox.path(phone.root).write_bytes(b"a file in the way")
    with pytest.raises(CommandFailed, match=r"making .* failed on the phone"):
        Pusher(phone).push(folder)


def test_listing_and_removing(phone: Phone, device: LoopbackDevice, folder: Folder, tmp_path: Path) -> None:
    store = Store(phone)
    assert store.present() == []
    other = folder_of({"x": piece(tmp_path / "x", bytes(100_000))}, "runners")
    for each in (folder, other):
        Pusher(phone).push(each)
    phone.run(f"rm {store.path(other, '.complete-all')}")
    found = {f"{p.kind}/{p.name}": p for p in store.present()}
    assert set(found) == {folder.name, other.name}
    assert found[folder.name].whole
    assert not found[other.name].whole
    assert found[folder.name].size == pytest.approx(SIZE, rel=0.05)
    phone.run(f"touch {phone.root}/not-ours")
    store.remove([found[folder.name]])
    assert [p.name for p in store.present()] == [found[other.name].name]
    store.remove(store.present())
    store.remove_root()
    assert phone.run(f"ls {phone.root}").stdout == "not-ours\n"
    phone.run(f"rm {phone.root}/not-ours")
    store.remove_root()
    assert not device.sandbox.path(phone.root).exists()


def test_android_s_own_commands_do_it_too(android: LoopbackDevice, folder: Folder, tmp_path: Path) -> None:
    phone = open_phone(android.serial)
    android.faults.drops.extend([3_000_000, 2_000_000])
    before = android.link.received
    assert Pusher(phone).push(folder).lost == 2
    assert android.link.received - before < SIZE + 2 * 3_000_000
    assert on_phone(android, phone, folder) == ours(folder)
    assert Pusher(phone).push(folder).sent == 0
    other = folder_of({**folder.pieces, "new.json": piece(tmp_path / "new", b"[1]")})
    assert Pusher(phone).push(other).sent == 3
    assert on_phone(android, phone, other) == ours(other)
    assert phone.run(Store(phone).path(other, "tool")).stdout == "works\n"
    Store(phone).remove(Store(phone).present())
    Store(phone).remove_root()
    assert not android.sandbox.path(phone.root).exists()
