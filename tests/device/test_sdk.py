"""Gathering headers and libraries from folders, AARs, wheels, npm, Maven and a QAIRT SDK."""

from __future__ import annotations

import errno
import hashlib
import json
import random
import tarfile
import zipfile
from pathlib import Path
from shlex import quote

import pytest
from click.testing import CliRunner

from hexgraft.host.adb import release
from hexgraft.host.cli.device import device
from hexgraft.host.runner.build import BuildError, build_runner, find_headers
from hexgraft.host.runner.sdk import NPM_PACKAGE, SdkError, Sources, gather
from hexgraft.models.errors import UsageError

HEADER = b"// the wrapper"


@pytest.fixture
def aar(tmp_path: Path) -> Path:
    path = tmp_path / "onnxruntime.aar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("headers/onnxruntime_cxx_api.h", HEADER)
        archive.writestr("headers/../../escape.h", b"never outside")
        archive.writestr("jni/arm64-v8a/libonnxruntime.so", b"arm")
        archive.writestr("jni/x86_64/libonnxruntime.so", b"intel")
        archive.writestr("jni/arm64-v8a/libQnnHtpV75Skel.so", b"skeleton")
        archive.writestr("classes.jar", b"java")
    return path


def fake_command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command of that name, found first."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_android_takes_headers_and_its_own_libraries(aar: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "sdk"
    summary = gather("android-arm64", Sources(aars=(aar,)), folder)
    taken = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert taken == {*summary.files, "sdk.json"}
    assert {"include/onnxruntime_cxx_api.h", "lib/libonnxruntime.so", "lib/libQnnHtpV75Skel.so"} <= taken
    assert (folder / "lib" / "libonnxruntime.so").read_bytes() == b"arm"
    entry = summary.files["include/onnxruntime_cxx_api.h"]
    assert (entry.sha256, entry.source) == (hashlib.sha256(HEADER).hexdigest(), "onnxruntime.aar")
    assert json.loads((folder / "sdk.json").read_text())["target"] == "android-arm64"
    assert not list(tmp_path.glob("escape.h"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sdk"]


def test_gathering_again_replaces_the_folder(aar: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sdk"
    gather("android-arm64", Sources(aars=(aar,)), folder)
    gather("linux-x86_64", Sources(aars=(aar,)), folder)
    assert not (folder / "lib").exists()


@pytest.mark.parametrize("output", ["mine", "mine/letter.txt", ".", "link"])
def test_a_folder_of_the_users_is_kept(
    aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """Whatever it is called: and that is said before anything is fetched."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "letter.txt").write_text("Dear neighbour")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder if output == "." else tmp_path)
    place = (Path.cwd() / output).resolve()
    with pytest.raises(UsageError) as caught:
        gather("linux-x86_64", Sources(aars=(aar,)), Path(output), lambda text: pytest.fail(text))
    assert caught.value.message == f"{place} exists already and is no SDK folder"
    assert caught.value.hint == "choose another one: -o FOLDER"
    assert (folder / "letter.txt").read_text() == "Dear neighbour"
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]


def test_an_empty_folder_is_taken_and_a_link_followed(aar: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for target in ("linux-x86_64", "android-arm64"):
        gather(target, Sources(aars=(aar,)), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty" / "lib" / "libonnxruntime.so").is_file()


def test_failure_leaves_what_was_there(aar: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "sdk"
    gather("linux-x86_64", Sources(aars=(aar,)), folder)
    aar.write_bytes(b"no archive")
    with pytest.raises(SdkError, match="cannot be read"):
        gather("linux-x86_64", Sources(aars=(aar,)), folder)
    assert (folder / "include" / "onnxruntime_cxx_api.h").read_bytes() == HEADER
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sdk"]


@pytest.mark.parametrize("damage", [b"\xff" * 40, b"\x00" * 40])
def test_an_archive_damaged_inside(tmp_path: Path, damage: bytes) -> None:
    aar = tmp_path / "onnxruntime.aar"
    with zipfile.ZipFile(aar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("headers/onnxruntime_cxx_api.h", HEADER * 100)
        archive.writestr("jni/arm64-v8a/libonnxruntime.so", random.Random(1).randbytes(200) * 20)
    whole = aar.read_bytes()
    at = whole.index(b"libonnxruntime.so") + len("libonnxruntime.so") + 8
    aar.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
    with pytest.raises(SdkError, match=r"onnxruntime\.aar is damaged") as raised:
        gather("android-arm64", Sources(aars=(aar,)), tmp_path / "sdk")
    assert raised.value.hint == "give a whole AAR or wheel"


def test_a_full_disk_is_not_the_archive_s_fault(
    aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "sdk"))

    monkeypatch.setattr("hexgraft.host.runner.sdk.shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space left on device"):
        gather("linux-x86_64", Sources(aars=(aar,)), tmp_path / "sdk")


def test_wheels_give_linux_libraries_and_licences(aar: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "onnxruntime-1.32.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnxruntime/capi/libonnxruntime.so.1.32.0", b"runtime")
        archive.writestr("onnxruntime/LICENSE", b"MIT")
        archive.writestr("onnxruntime/tools/deep/LICENSE", b"of something else")
    folder = tmp_path / "sdk"
    summary = gather("linux-aarch64", Sources(aars=(aar,), wheels=(wheel,)), folder)
    assert (folder / "lib" / "libonnxruntime.so").read_bytes() == b"runtime"
    assert summary.licenses == {"licenses/onnxruntime-LICENSE": wheel.name}
    for target in ("linux-x86_64", "android-arm64"):
        with pytest.raises(UsageError, match="not a wheel for"):
            gather(target, Sources(aars=(aar,), wheels=(wheel,)), folder)


def test_a_provider_s_wheel_brings_its_c_runtime(
    aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qualcomm's libraries ask for it by a name that only the wheel has, so it goes to the phone too."""
    wheel = tmp_path / "onnxruntime_qnn-2.7.0-cp311-cp311-manylinux_2_34_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("libonnxruntime_providers_qnn.so", "libQnnHtp.so", "libQnnSystem.so"):
            archive.writestr(f"onnxruntime_qnn/{name}", b"library")
        for name in ("libc++-71bc274c.so.1.0", "libunwind-6b740a46.so.1.0"):
            archive.writestr(f"onnxruntime_qnn.libs/{name}", name.encode())
    monkeypatch.setattr("hexgraft.host.adb.release.sdk_folder", lambda target: tmp_path / "sdk")
    summary = gather("linux-aarch64", Sources(aars=(aar,), wheels=(wheel,)), tmp_path / "sdk")
    assert summary.files["lib/libc++-71bc274c.so.1.0"].source == wheel.name
    pushed = {path.name for path in release._qnn("linux-aarch64", None)}
    assert {"libc++-71bc274c.so.1.0", "libunwind-6b740a46.so.1.0", "libQnnHtp.so"} <= pushed
    assert "libonnxruntime.so" not in pushed


def test_qairt_gives_the_targets_libraries_and_skeletons(aar: Path, tmp_path: Path) -> None:
    root = tmp_path / "qairt-2.51"
    for name in (
        "lib/aarch64-android/libQnnHtp.so",
        "lib/aarch64-android/libQnnHtpV79Stub.so",
        "lib/aarch64-android/libSomethingElse.so",
        "lib/x86_64-linux-clang/libQnnHtp.so",
        "lib/hexagon-v79/unsigned/libQnnHtpV79Skel.so",
        "LICENSE.pdf",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    folder = tmp_path / "sdk"
    summary = gather("android-arm64", Sources(aars=(aar,), qairt=root), folder)
    libraries = {path.name for path in (folder / "lib").iterdir()} - {
        "libonnxruntime.so",
        "libQnnHtpV75Skel.so",
    }
    assert libraries == {"libQnnHtp.so", "libQnnHtpV79Stub.so", "libQnnHtpV79Skel.so"}
    assert (folder / "lib" / "libQnnHtp.so").read_bytes() == b"lib/aarch64-android/libQnnHtp.so"
    assert list(summary.licenses.values()) == [root.name]
    with pytest.raises(UsageError, match="has no lib"):
        gather("android-arm64", Sources(aars=(aar,), qairt=tmp_path), folder)


def test_npm_is_the_default(aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "LICENSE").write_text("MIT")
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as archive:
        archive.add(aar, "package/Plugins/Android/onnxruntime.aar")
        archive.add(tmp_path / "LICENSE", "package/LICENSE")
        archive.add(tmp_path / "LICENSE", "../../outside")
        link = tarfile.TarInfo("package/NOTICE")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    asked, package = (quote(str(tmp_path / name)) for name in ("asked", "package.tgz"))
    script = f'echo "$@" > {asked}; cp {package} "$4/p.tgz"'
    fake_command(tmp_path / "bin", "npm", script, monkeypatch)
    summary = gather("linux-x86_64", Sources(), tmp_path / "sdk")
    assert NPM_PACKAGE in (tmp_path / "asked").read_text()
    assert list(summary.licenses.values()) == [NPM_PACKAGE]
    assert not list(tmp_path.rglob("outside"))
    whole = (tmp_path / "package.tgz").read_bytes()
    (tmp_path / "package.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SdkError, match="came damaged"):
        gather("linux-x86_64", Sources(), tmp_path / "again")
    fake_command(tmp_path / "bin", "npm", "echo no such package >&2; exit 1", monkeypatch)
    with pytest.raises(SdkError, match="npm failed: no such package"):
        gather("linux-x86_64", Sources(), tmp_path / "sdk")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SdkError, match="npm is not installed"):
        gather("linux-x86_64", Sources(), tmp_path / "sdk")


def test_maven_coordinates(aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'for word; do case "$word" in -DoutputDirectory=*) mkdir -p "${word#*=}"; '
    script += f'cp {quote(str(aar))} "${{word#*=}}/thing-1.0.aar";; esac; done'
    fake_command(tmp_path / "bin", "mvn", script, monkeypatch)
    summary = gather("android-arm64", Sources(maven=("org.example:thing:1.0",)), tmp_path / "sdk")
    assert summary.files["lib/libonnxruntime.so"].source == "thing-1.0.aar"
    with pytest.raises(UsageError, match="no Maven coordinates"):
        gather("android-arm64", Sources(maven=("thing; rm",)), tmp_path / "sdk")


def test_sources_without_headers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no ONNX Runtime headers"):
        gather("linux-x86_64", Sources(headers=tmp_path / "empty"), tmp_path / "sdk")
    with pytest.raises(UsageError, match="unknown target"):
        gather("windows", Sources(), tmp_path / "sdk")
    with pytest.raises(UsageError) as caught:
        find_headers("asan", tmp_path / "empty")
    assert caught.value.hint == "gather them with `hexgraft device sdk`"


def test_commands(aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXGRAFT_CACHE", str(tmp_path / "cache"))
    runner = CliRunner()
    done = runner.invoke(device, ["sdk", "--target", "android-arm64", "--aar", str(aar)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(tmp_path / "cache" / "sdk" / "android-arm64")
    assert hashlib.sha256(HEADER).hexdigest()[:16] in done.stderr
    assert "no licence text" in done.stderr
    # Headers are the same for every target.
    assert find_headers("linux-x86_64") == tmp_path / "cache" / "sdk" / "android-arm64" / "include"
    done = runner.invoke(device, ["sdk", "--target", "linux-x86_64", "--aar", str(aar), "--json"])
    assert json.loads(done.stdout)["target"] == "linux-x86_64"


def test_builds_that_cannot_be(aar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather("linux-x86_64", Sources(aars=(aar,)), tmp_path / "sdk")
    with pytest.raises(UsageError, match="unknown preset"):
        build_runner("windows")
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    with pytest.raises(UsageError, match="ANDROID_NDK_HOME"):
        build_runner("android-arm64", sdk=tmp_path / "sdk")
    script = "echo 'CMake Error at CMakeLists.txt: it broke' >&2; exit 1"
    fake_command(tmp_path / "bin", "cmake", script, monkeypatch)
    with pytest.raises(BuildError, match="it broke"):
        build_runner("asan", sdk=tmp_path / "sdk")
