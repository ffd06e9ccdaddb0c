"""Commands on a phone: codes, streams, whatever a command line may hold, and links that go."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from phones import Connect, wait_until

from hexgraft.host.adb.errors import CommandFailed, ConnectionLost
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.server import ServiceRefused
from hexgraft.host.adb.shell import ShellStream, quote
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import CONNECTION_LOST

NASTY = 'it\'s "$HOME" `id` \\ \n\t* ? ~ ; & | < > # é 漢 🙂 -n'


@pytest.mark.parametrize("code", [0, 1, 37, 127, 255])
def test_codes(phone: Phone, code: int) -> None:
    assert phone.run(f"exit {code}").code == code


def test_a_killed_command(phone: Phone) -> None:
    assert phone.run("kill -9 $$").code == 137


def test_streams_are_apart(phone: Phone) -> None:
    done = phone.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.code) == ("out\n", "err\n", 3)
    with pytest.raises(CommandFailed, match="asking failed on the phone: err"):
        done.check("asking")


def test_large_output_and_standard_input(phone: Phone) -> None:
    data = bytes(range(256)) * 4096 * 3
    stream = phone.start("cat; echo done >&2; exit 9")
    got = bytearray()

    def take() -> None:
        while part := stream.read(1 << 16):
            got.extend(part)

    reader = threading.Thread(target=take)
    reader.start()
    for start in range(0, len(data), 1 << 20):
        stream.write(data[start : start + (1 << 20)])
    stream.end_input()
    reader.join(timeout=120)
    stream.close()
    assert bytes(got) == data
    assert stream.code == 9
    assert bytes(stream.errors) == b"done\n"


def test_words_arrive_as_they_are(phone: Phone) -> None:
    assert phone.run(f"printf %s {quote(NASTY)}").stdout == NASTY


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200))
def test_any_word_arrives_as_it_is(phone: Phone, word: str) -> None:
    assert phone.run(f"printf %s {quote(word)} | od -An -tx1 -v").stdout.split() == [
        f"{byte:02x}" for byte in word.encode()
    ]


def test_a_command_longer_than_adb_takes(phone: Phone) -> None:
    with pytest.raises(ConnectionLost, match="70000 bytes is more than adb takes") as raised:
        phone.run(": " + "x" * (70_000 - 2 - len("shell,v2,TERM=dumb,raw:")))
    assert isinstance(raised.value.__cause__, ServiceRefused)


def test_a_long_command_arrives_whole(phone: Phone) -> None:
    word = "x" * 60_000
    assert phone.run(f"printf %s {word}").stdout == word


def test_a_link_that_goes_is_told_from_an_end(phone: Phone, device: LoopbackDevice) -> None:
    stream = phone.start("echo begin; exec sleep 64")
    assert stream.read(100) == b"begin\n"
    device.drop()
    assert stream.read(100) == b""
    assert stream.lost
    assert stream.code is None
    stream.close()
    assert wait_until(lambda: device.sandbox.processes() == [])


def test_what_was_going_on_is_in_the_message(
    phone: Phone, device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = phone.start

    def start_and_drop(command: str) -> ShellStream:
        stream = start(command)
        device.drop()
        return stream

    monkeypatch.setattr(phone, "start", start_and_drop)
    with pytest.raises(ConnectionLost, match="was lost while baking bread") as raised:
        phone.run("sleep 65", "baking bread")
    assert raised.value.exit_code == CONNECTION_LOST


def test_a_silent_phone_has_a_limit(phone: Phone) -> None:
    with pytest.raises(ConnectionLost, match="did not answer within 1 s"):
        phone.run("sleep 66", timeout=1)


def test_writing_to_an_ended_command(phone: Phone) -> None:
    stream = phone.start("echo no >&2; exit 6")
    assert wait_until(stream.poll)
    with pytest.raises(BrokenPipeError):
        stream.write(b"more")
    assert stream.code == 6
    assert bytes(stream.errors) == b"no\n"


def test_the_phone_comes_back(phone: Phone, device: LoopbackDevice) -> None:
    device.drop()
    phone.wait(30)
    assert phone.run("echo back").stdout == "back\n"


def test_a_phone_that_stays_away(phone: Phone, device: LoopbackDevice) -> None:
    device.close()
    with pytest.raises(ConnectionLost, match="did not come back within 0 s") as raised:
        phone.wait(0)
    assert f"adb connect {device.serial}" in str(raised.value.hint)


def test_a_killed_server_is_started_again(server: AdbServer, connect: Connect) -> None:
    device = connect()
    phone = open_phone(device.serial)
    server.run("kill-server")
    server.run("start-server")
    server.connect([device.serial])
    phone.wait(60)
    assert phone.run("echo back").stdout == "back\n"


def test_android_s_own_shell(android: LoopbackDevice) -> None:
    """mksh and toybox, where the machine has them, are what phones have."""
    phone = open_phone(android.serial)
    assert "MIRBSD KSH" in phone.run("echo $KSH_VERSION").stdout
    assert "Toybox" in phone.run("ls --help").stdout
    assert phone.run(f"printf %s {quote(NASTY)}").stdout == NASTY
