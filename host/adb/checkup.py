"""What may keep a phone from running a model, looked at one by one, each finding with its fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from hexgraft.host.adb.device_runner import DeviceRunner, running
from hexgraft.host.adb.errors import ConnectionLost, DeviceError, NoAdb, NoDevice
from hexgraft.host.adb.facts import PhoneFacts, gather
from hexgraft.host.adb.needs import HINT, lacking, missing_commands
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.push import megabytes
from hexgraft.host.adb.release import Release, find_release
from hexgraft.host.adb.server import INSTALL_HINT, Server
from hexgraft.host.adb.shell import quote
from hexgraft.host.adb.store import Store
from hexgraft.host.runner.local import RUNNER
from hexgraft.models.errors import HexgraftError

OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
_HOT = 45.0
_LOW_BATTERY = 20
_LOW_SPACE = 1 << 30
_PROBE_SECONDS = 15.0


class Finding(msgspec.Struct, frozen=True):
    """One line of a checkup. `state` is one of OK, WARNING, FAILED and UNKNOWN, which is what could not be
    checked; `fix` says what to do."""

    what: str
    state: str
    said: str
    fix: str = ""


Findings = Iterator[Finding]


def check_adb() -> Findings:
    """adb and its server on this machine. Stops at the first thing the rest depends on."""
    try:
        server = Server()
        client = server.client_version()
        yield Finding("adb", OK, f"{server.adb}, {client}")
        number = server.version()
    except NoAdb as error:
        yield Finding("adb", FAILED, error.message, error.hint or INSTALL_HINT)
        return
    except HexgraftError as error:
        yield Finding("adb server", FAILED, error.message, error.hint or "adb kill-server")
        return
    expected = re.match(r"1\.0\.(\d+)", client)
    if expected and int(expected[1]) != number:
        yield Finding(
            "adb server",
            WARNING,
            f"the server has version {number}, {server.adb} of {expected[1]}: each ends the other's server",
            "keep one adb in PATH, or name it: export ADBUTILS_ADB_PATH=...",
        )
    else:
        named = f" at {server.address} ({server.address.variable})" if server.address.variable else ""
        yield Finding("adb server", OK, f"version {number}{named}")


def check_phone(serial: str | None, root: str, chip: Callable[[PhoneFacts], str | None]) -> Findings:
    """Everything about a phone. `chip` names the Hexagon NPU of a phone's chip, None if it is not known.
    Raises NoDevice, and ConnectionLost where the phone goes away meanwhile."""
    try:
        phone = open_phone(serial, root)
        facts = gather(phone)
    except NoDevice as error:
        said = "\n  ".join((error.message, *error.details))
        yield Finding("phone", FAILED, said, error.hint or "")
        raise
    except ConnectionLost:
        raise
    except DeviceError as error:
        yield Finding("phone", FAILED, error.message, error.hint or "")
        return
    android = f"Android {facts.android} (API {facts.api})" if facts.android else facts.target
    yield Finding("phone", OK, f"{facts.manufacturer} {facts.model}, {android}, {facts.serial}".strip())
    yield from _npu(phone, facts, chip)
    yield from _commands(phone)
    yield from _folder(phone, facts)
    yield from _state(facts)
    release, missing = _present(phone, facts)
    if missing is not None:
        yield missing
    yield from _runner(phone, release)
    if facts.nodes:
        yield from _unsigned(phone, release)


def _npu(phone: Phone, facts: PhoneFacts, chip: Callable[[PhoneFacts], str | None]) -> Findings:
    known = chip(facts)
    if known:
        yield Finding("chip", OK, known)
    else:
        name = facts.soc or facts.board or "unknown"
        yield Finding("chip", WARNING, f"{name} is not in the table of Hexagon NPUs", "use --provider cpu")
    nodes = " ".join(
        "/dev/" + node for node in facts.nodes if re.fullmatch(r"[\w-]*(cdsp|adsprpc)[\w-]*", node)
    )
    if not nodes:
        yield Finding("FastRPC", WARNING, "no device node to reach an NPU by", "use --provider cpu")
    elif phone.run(f"for n in {nodes}; do [ -r $n ] && exit 0; done; exit 1").code:
        yield Finding(
            "FastRPC", FAILED, f"the shell may not open {nodes}", "use another phone, or --provider cpu"
        )
    else:
        yield Finding("FastRPC", OK, nodes)
    if facts.vendor_qnn:
        yield Finding(
            "vendor's QNN",
            WARNING,
            f"the phone has libraries of its own, of another release: {', '.join(facts.vendor_qnn)}",
            "nothing to do: ours come first in the search path; if 14001 appears nevertheless, they won",
        )
    yield from _denials(phone)


def _denials(phone: Phone) -> Findings:
    """What SELinux kept from the shell user lately."""
    log = phone.run("logcat -d -b all -t 4000 2>/dev/null; true", "reading its log").stdout.splitlines()
    if not log:
        yield Finding("SELinux", UNKNOWN, "could not check: the phone's log is empty or may not be read")
        return
    denials = [line for line in log if re.search(r"avc: *denied", line)]
    ours = [line for line in denials if re.search(r"adsprpc|fastrpc|qdsp|hexgraft|u:r:shell", line)]
    if not ours:
        yield Finding("SELinux", OK, "no denial in the log that concerns us")
        return
    what = re.search(r"denied\s+\{ ([^}]+) \}.*?(?:name|path)=\"([^\"]+)\"", ours[-1])
    said = f"denied `{what[1].strip()}` on {what[2]}" if what else ours[-1].strip()
    yield Finding("SELinux", WARNING, said, "if a run on the NPU fails, this is why: use --provider cpu")


def _commands(phone: Phone) -> Findings:
    if missing := missing_commands(phone):
        yield Finding("commands", FAILED, lacking(phone, missing), HINT)
    else:
        yield Finding("commands", OK, "all that files are moved with")


def _folder(phone: Phone, facts: PhoneFacts) -> Findings:
    """Whether files of ours can be written and run, and how much space there is."""
    probe = quote(f"{phone.root}/.probe")
    done = phone.run(
        f"mkdir -p {quote(phone.root)} && echo 'exit 7' > {probe} && chmod 755 {probe} && {probe}; c=$?; "
        f"rm -f {probe}; exit $c"
    )
    if done.code == 7:
        yield Finding("folder", OK, f"{phone.root} can be written and run from")
    else:
        said = (done.stderr.strip().splitlines() or [f"exit {done.code}"])[-1]
        yield Finding(
            "folder", FAILED, f"nothing can be run from {phone.root}: {said}", "choose another --root"
        )
    if facts.space_free is None:
        yield Finding("space", WARNING, "the phone does not tell how much is free", "see Settings, Storage")
        return
    present = Store(phone).present()
    ours = sum(entry.size for entry in present)
    said = f"{megabytes(facts.space_free)} free, {megabytes(ours)} in {len(present)} folders of ours"
    if facts.space_free < _LOW_SPACE:
        yield Finding("space", WARNING, said, "hexgraft clean")
    else:
        yield Finding("space", OK, said)


def _state(facts: PhoneFacts) -> Findings:
    """What makes the same run fast or slow."""
    if facts.memory and facts.memory_free:
        yield Finding("memory", OK, f"{megabytes(facts.memory_free)} of {megabytes(facts.memory)} free")
    if facts.hottest is not None:
        hot = facts.hottest.degrees > _HOT
        said = f"warmest zone {facts.hottest.name} at {facts.hottest.degrees:.1f} °C"
        yield Finding(
            "temperature", WARNING if hot else OK, said, "let it cool down before measuring" if hot else ""
        )
    if facts.battery is not None:
        low = facts.battery < _LOW_BATTERY
        said = f"{facts.battery} %, {'plugged in' if facts.plugged else 'not plugged in'}"
        yield Finding("battery", WARNING if low else OK, said, "charge it before measuring" if low else "")
    if facts.awake is not None:
        fix = "" if facts.awake else "unlock it: a sleeping phone computes several times slower"
        yield Finding("screen", OK if facts.awake else WARNING, "on" if facts.awake else "off", fix)


def _present(phone: Phone, facts: PhoneFacts) -> tuple[Release | None, Finding | None]:
    """The runner of this installation that is on the phone, with the NPU's libraries or without; and what is
    missing here to know one."""
    missing = None
    for qnn in (True, False):
        try:
            release = find_release(facts.target, qnn=qnn)
        except HexgraftError as error:
            if not qnn:
                missing = Finding("runner here", WARNING, error.message, error.hint or "")
            continue
        if Store(phone).is_whole(release.folder):
            return release, None
    return None, missing


class _Probe(msgspec.Struct):
    """What `hexgraft-runner --probe-npu` prints."""

    unsigned_pd: bool | None
    arch: int | None
    error: str | None


def _ask_npu(phone: Phone, folder: str) -> _Probe:
    """What the runner in a folder finds out. The vendor's library may hang, which ends nothing but the
    asking: `exec` lets the hang-up reach it."""
    command = (
        f"LD_LIBRARY_PATH={quote(folder)}:/vendor/lib64:/system/vendor/lib64 "
        f"exec {quote(f'{folder}/{RUNNER}')} --probe-npu libcdsprpc.so"
    )
    try:
        done = phone.run(command, "asking for its NPU", _PROBE_SECONDS)
    except ConnectionLost:
        phone.run("true", "asking for its NPU")  # raises where it is the phone that is gone
        return _Probe(None, None, f"FastRPC has not answered for {_PROBE_SECONDS:.0f} s")
    try:
        return msgspec.json.decode(done.stdout, type=_Probe)
    except msgspec.DecodeError:
        said = (done.stderr.strip().splitlines() or [f"exit {done.code}"])[-1]
        return _Probe(None, None, said)


def _unsigned(phone: Phone, release: Release | None) -> Findings:
    """Whether the compute DSP takes unsigned code, which is all that the shell user's libraries are; and
    whether the skel for its Hexagon version is there. The phone's own FastRPC library is asked."""
    what = "unsigned PD"
    if release is None:
        yield Finding(
            what, UNKNOWN, "could not check: the runner that asks is not on the phone", "hexgraft push BUNDLE"
        )
        return
    probe = _ask_npu(phone, f"{phone.root}/{release.folder.name}")
    if probe.unsigned_pd is None:
        yield Finding(what, UNKNOWN, f"could not check: {probe.error}", "a run with --provider htp will tell")
    elif probe.unsigned_pd:
        yield Finding(what, OK, "allowed")
    else:
        yield Finding(
            what, WARNING, "the phone's NPU takes signed code only", "use another phone, or --provider cpu"
        )
    if release.qnn:
        yield from _skel(release, probe.arch)


def _skel(release: Release, arch: int | None) -> Findings:
    """Whether the library that runs on the NPU itself is there for its version."""
    if arch is None:
        yield Finding("skel", UNKNOWN, "could not check: the phone does not tell its Hexagon version")
    elif f"libQnnHtpV{arch}Skel.so" in release.libraries:
        yield Finding("skel", OK, f"libQnnHtpV{arch}Skel.so is on the phone")
    else:
        yield Finding(
            "skel",
            WARNING,
            f"libQnnHtpV{arch}Skel.so is not among the libraries on the phone",
            "gather it, then push: hexgraft device sdk --qairt SDK",
        )


def _runner(phone: Phone, release: Release | None) -> Findings:
    """Whether the runner of this installation is there, starts, and what it can do."""
    pid = running(phone)
    if pid is not None:
        yield Finding("runner", WARNING, f"one runs already, process {pid}", "wait for that run to end")
        return
    if release is None:
        yield Finding("runner", WARNING, "not on the phone yet", "hexgraft push BUNDLE")
        return
    try:
        runner = DeviceRunner(phone, release, stay_awake=False)
    except HexgraftError as error:
        yield Finding("runner", FAILED, error.message, error.hint or "")
        return
    try:
        hello = runner.connection.hello
        can = ", ".join(hello.providers) or "nothing"
        ort = f"ONNX Runtime {hello.ort.version}" if hello.ort else "no ONNX Runtime"
        if hello.error is not None:
            yield Finding("runner", FAILED, hello.error.message, hello.error.hint)
        else:
            yield Finding("runner", OK, f"hexgraft {hello.version} for {hello.build}, {ort}, runs on: {can}")
    finally:
        runner.close()
