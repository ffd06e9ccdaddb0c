"""Which phone is meant, and the one screen that says what to do when none is clear."""

from __future__ import annotations

import sys

import pytest
from command import hexgraft
from phones import Connect, wait_until

from hexgraft.host.adb.choice import choose, pick
from hexgraft.host.adb.errors import NoAdb, NoDevice
from hexgraft.host.adb.phone import ROOT, check_root, open_phone
from hexgraft.host.adb.server import Listed, Server, ServiceRefused, parse_devices
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.models.errors import NO_DEVICE, UsageError

READY = Listed("R58M12", "device", "SM S928B", "e3qxxx", 3)
OTHER = Listed("emulator-5554", "device", "sdk", "sdk", 4)


def listed(state: str) -> Listed:
    return Listed("R58M12", state, "", "", 5)


def refused(found: Listed | NoDevice) -> NoDevice:
    assert isinstance(found, NoDevice)
    return found


def test_lines_of_the_list() -> None:
    text = (
        "R58M12                 device usb:1-4 product:e3qxxx model:SM_S928B device:e3q transport_id:3\n"
        "0123\tunauthorized usb:1-2 transport_id:1\n"
        "????????????           no permissions (missing udev rules? user is in the plugdev group); "
        "see [http://developer.android.com/tools/device.html] usb:1-3 transport_id:2\n"
        "127.0.0.1:7000         offline\n"
        "\n"
    )
    found = parse_devices(text)
    assert found[0] == READY
    assert (found[1].serial, found[1].state, found[1].transport_id) == ("0123", "unauthorized", 1)
    assert found[2].state.startswith("no permissions (missing udev rules?")
    assert found[2].transport_id == 2
    assert found[3] == Listed("127.0.0.1:7000", "offline", "", "", None)
    assert len(found) == 4


def test_serials_with_spaces() -> None:
    """As wireless debugging has them when a phone announces itself twice, and as a phone without one."""
    text = (
        "adb-R5CT-x1 (2)._adb-tls-connect._tcp device product:e3q model:SM_S928B device:e3q transport_id:8\n"
        "adb-R5CT-x1 (2)._adb-tls-connect._tcp\toffline\n"
        "(no serial number)     unauthorized usb:1-3 transport_id:2\n"
        "(no serial number)     no permissions (user in plugdev group); see [http://x.y] usb:1-3\n"
    )
    wireless = "adb-R5CT-x1 (2)._adb-tls-connect._tcp"
    found = parse_devices(text)
    assert [(each.serial, each.state) for each in found] == [
        (wireless, "device"),
        (wireless, "offline"),
        ("(no serial number)", "unauthorized"),
        ("(no serial number)", "no permissions (user in plugdev group); see [http://x.y]"),
    ]
    assert (found[0].ready, found[0].model, found[0].transport_id) == (True, "SM S928B", 8)
    assert f"--serial '{wireless}'" in str(refused(pick([found[0], READY], None)).hint)


def test_the_only_ready_one_is_taken() -> None:
    assert pick([READY], None) == READY
    assert pick([READY, listed("unauthorized")], None) == READY
    assert pick([READY, OTHER], "emulator-5554") == OTHER


def test_equal_serials_are_told_apart_by_number() -> None:
    twin = Listed("R58M12", "device", "SM S928B", "e3qxxx", 9)
    error = refused(pick([READY, twin], "R58M12"))
    assert "2 phones have the serial R58M12" in error.message
    assert "--serial NUMBER" in str(error.hint)
    assert pick([READY, twin], "9") == twin


def test_several_are_listed() -> None:
    error = refused(pick([READY, OTHER], None))
    assert error.exit_code == NO_DEVICE
    assert error.message == "there are 2 phones"
    assert error.details == ("R58M12         device  SM S928B  3", "emulator-5554  device  sdk       4")
    assert error.hint == "choose one: --serial R58M12, or export ANDROID_SERIAL=R58M12"


STRANGE = Listed("R58M12\n", "unauthorized", "Nice\x1b[2J\u2028phone", "", 7)


@pytest.mark.parametrize(
    ("serial", "phones", "screen"),
    [
        (
            None,
            [READY, OTHER],
            """\
error: there are 2 phones
  R58M12         device  SM S928B  3
  emulator-5554  device  sdk       4

hint: choose one: --serial R58M12, or export ANDROID_SERIAL=R58M12
""",
        ),
        (
            None,
            [listed("offline"), STRANGE],
            """\
error: none of 2 phones can be used
  R58M12   offline       -               5
  R58M12\ufffd  unauthorized  Nice\ufffd[2J\ufffdphone  7

hint: unplug it and plug it in again, or switch USB debugging off and on
""",
        ),
        (
            "X\n1",
            [READY],
            """\
error: there is no phone with the serial X\ufffd1
  R58M12  device  SM S928B  3

hint: use one of these: --serial R58M12
""",
        ),
        (
            "R58M12",
            [READY, READY],
            """\
error: 2 phones have the serial R58M12
  R58M12  device  SM S928B  3
  R58M12  device  SM S928B  3

hint: choose one by its number: --serial NUMBER
""",
        ),
    ],
)
def test_the_screen_lists_phones_in_lines(
    serial: str | None, phones: list[Listed], screen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line each, whatever a phone is called; so does the doctor's."""
    monkeypatch.setattr(Server, "devices", lambda self: phones)
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    words = ["--serial", serial] if serial else []
    done = hexgraft("clean", *words)
    assert (done.exit_code, done.stdout, done.stderr) == (NO_DEVICE, "", screen)


def test_the_doctors_screen_lists_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "devices", lambda self: [READY, OTHER])
    monkeypatch.setattr("hexgraft.host.cli.doctor.check_adb", lambda: iter(()))
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    done = hexgraft("doctor", "--backend", "device")
    assert done.exit_code == NO_DEVICE
    assert done.stdout.splitlines()[-4:] == [
        "failed   phone: there are 2 phones",
        "  R58M12         device  SM S928B  3",
        "  emulator-5554  device  sdk       4",
        "         fix: choose one: --serial R58M12, or export ANDROID_SERIAL=R58M12",
    ]


def test_what_adb_refuses_with_is_told_in_a_line() -> None:
    """The server's words about a phone that is not authorised are three lines."""

    class Refusing:
        def __init__(self) -> None:
            self.conn = self

        def sendall(self, data: bytes) -> None: ...

        def read(self, count: int) -> bytes:
            return b"FAIL"

        def read_string_block(self) -> str:
            return "device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set\nTry that"

    with pytest.raises(ServiceRefused) as raised:
        Server()._ask(Refusing(), "host:features")
    assert str(raised.value) == "device unauthorized. This adb server's $ADB_VENDOR_KEYS is not set Try that"


def test_none_at_all() -> None:
    error = refused(pick([], None))
    assert error.message == "adb sees no phone"
    assert "USB debugging" in str(error.hint)
    assert "hexgraft device loopback" in str(error.hint)


def test_a_serial_that_is_not_there() -> None:
    error = refused(pick([READY], "X1"))
    assert "there is no phone with the serial X1" in error.message
    assert error.hint == "use one of these: --serial R58M12"


def test_none_of_several_is_ready() -> None:
    error = refused(pick([listed("unauthorized"), listed("offline")], None))
    assert "none of 2 phones can be used" in error.message
    assert "accept the prompt" in str(error.hint)


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("unauthorized", "accept the prompt"),
        ("offline", "unplug"),
        ("no permissions (missing udev rules?); see [...]", "android-sdk-platform-tools-common"),
        ("recovery", "adb reboot"),
        ("bootloader", "fastboot reboot"),
        ("rescue", "adb devices -l"),
    ],
)
def test_each_state_has_its_advice(state: str, word: str) -> None:
    class Fixed:
        def devices(self) -> list[Listed]:
            return [listed(state)]

    with pytest.raises(NoDevice) as raised:
        choose(Fixed(), None, patience=0)  # type: ignore[arg-type]
    assert f"the phone R58M12 is {state.split(';')[0]}" in raised.value.message
    assert word in str(raised.value.hint)


def test_offline_is_waited_for() -> None:
    class Waking:
        asked = 0

        def devices(self) -> list[Listed]:
            self.asked += 1
            return [READY if self.asked > 1 else listed("offline")]

    waking = Waking()
    assert choose(waking, "R58M12", patience=5) == READY  # type: ignore[arg-type]
    assert waking.asked == 2


@pytest.mark.parametrize(
    "root",
    ["", "/", "tmp/x", "/data", "/data/../etc", "/sdcard/x", "/storage/x/y", "//", "/a//b", "/a/\udcff"],
)
def test_roots_that_are_refused(root: str) -> None:
    with pytest.raises(UsageError, match="--root"):
        check_root(root)


def test_root_is_kept_as_it_is() -> None:
    assert check_root(ROOT + "/") == ROOT


def test_without_adbutils_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbutils", None)
    with pytest.raises(NoAdb, match="adbutils is not installed") as raised:
        Server()
    assert raised.value.hint == 'install what phones need: pip install "hexgraft[device]"'
    assert raised.value.exit_code == NO_DEVICE


def test_an_adb_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/nowhere/adb")
    with pytest.raises(NoAdb, match="/nowhere/adb cannot be run"):
        Server().client_version()


def test_a_server_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    with pytest.raises(NoAdb, match=r"at 127\.0\.0\.1:1 does not answer: /bin/false cannot start it"):
        Server().devices()


def test_a_server_is_started_without_a_word(
    server: AdbServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with AdbServer(server.adb) as own:
        for name, value in own.variables.items():
            monkeypatch.setenv(name, value)
        own.run("kill-server")
        capfd.readouterr()
        assert Server().version() == 41
        assert capfd.readouterr() == ("", "")


def test_two_phones_and_the_environment(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = connect(), connect()
    with pytest.raises(NoDevice, match="there are 2 phones"):
        open_phone()
    assert open_phone(two.serial).serial == two.serial
    one.close()
    assert wait_until(lambda: not any(e.serial == one.serial and e.ready for e in Server().devices()))
    assert open_phone().serial == two.serial


def test_an_old_phone_is_refused_in_words(connect: Connect) -> None:
    device = connect(no_shell_v2=True)
    with pytest.raises(NoDevice, match="its Android is older than 7") as raised:
        open_phone(device.serial)
    assert raised.value.exit_code == NO_DEVICE


def test_a_phone_that_refuses(connect: Connect) -> None:
    device = connect(refuse=True)
    assert wait_until(lambda: any(e.state == "unauthorized" for e in Server().devices()))
    with pytest.raises(NoDevice, match="is unauthorized") as raised:
        open_phone(device.serial, patience=0)
    assert "accept the prompt" in str(raised.value.hint)
    device.faults.refuse = False
    device.drop()
    assert wait_until(lambda: any(e.ready for e in Server().devices()), 60)


def test_versions(server: AdbServer, connect: Connect) -> None:
    connect()
    found = Server()
    assert found.version() == 41
    assert found.client_version().startswith("1.0.41 ")
    assert found.adb == server.adb
