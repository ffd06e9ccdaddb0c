"""The runner on a phone's processor: cross compiled, emulated, and checked as far as goes without an NDK."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from native_build import DEVICE, built, run_ctest

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.runner.build import find_headers
from hexgraft.host.runner.local import RUNNER, LocalRunner
from hexgraft.host.runner.sdk import sdk_folder
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import causal, tree_visibility

SYSROOT = Path("/usr/aarch64-linux-gnu")
CPUINFO = """processor\t: {core}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

"""


@pytest.fixture(scope="session")
def aarch64_build() -> Path:
    return built("linux-aarch64", "aarch64-linux-gnu-g++", "qemu-aarch64")


@pytest.mark.slow
def test_native_tests_under_emulation(aarch64_build: Path) -> None:
    run_ctest(aarch64_build)


@pytest.mark.slow
def test_runner_under_emulation(aarch64_build: Path, bundle: Bundle, tmp_path: Path) -> None:
    """Same rows and cache as in process here, within what another processor's order of additions changes."""
    library = sdk_folder("linux-aarch64") / "lib" / "libonnxruntime.so"
    if not library.is_file():
        pytest.skip("no ONNX Runtime for aarch64: `hexgraft device sdk --target linux-aarch64 --wheel WHEEL`")
    # The runtime reads /proc/cpuinfo, and trips over one of another architecture.
    for folder in SYSROOT.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("".join(CPUINFO.format(core=core) for core in range(2)))
    emulator = ["qemu-aarch64", "-cpu", "cortex-a76", "-L", str(tmp_path)]
    runner = LocalRunner(aarch64_build / RUNNER, ort=library, command=emulator)
    assert runner.connection.hello.build == "linux-aarch64"
    remote = RunnerSession(runner.connection, str(bundle.path), threads=1)
    local = CpuSession(bundle)
    for session in (local, remote):
        session.forward(list(range(30, 60)), range(30), causal(0, 30))
        session.store(range(30), range(30))
    mask = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], np.bool_)
    visible = tree_visibility(30, mask)
    ours, theirs = (s.forward([5, 6, 7, 8], [30, 31, 31, 32], visible) for s in (local, remote))
    np.testing.assert_array_equal(theirs.topk(3).ids, ours.topk(3).ids)
    for row in range(4):
        np.testing.assert_allclose(theirs.logits(row), ours.logits(row), rtol=0, atol=2e-4)
    np.testing.assert_allclose(remote.save(30).keys, local.save(30).keys, rtol=0, atol=2e-4)
    runner.close()


def compile_for_android(source: Path, folder: Path) -> Path:
    """One object for Android's target, with Debian's libc++ and C headers: a check, not a build."""
    libcxx = sorted(Path("/usr/lib").glob("llvm-*/include/c++/v1"))[-1]
    flags = ["--target=aarch64-linux-android29", "-std=c++17", "-nostdinc++", "-O1", "-fno-rtti"]
    flags += ["-Wall", "-Wextra", "-Werror", '-DHEXGRAFT_VERSION="0"', '-DHEXGRAFT_BUILD="check"']
    for include in (libcxx, SYSROOT / "include", find_headers("android-arm64"), folder):
        flags += ["-isystem", str(include)]
    made = folder / f"{source.stem}.o"
    done = subprocess.run(
        ["clang++", *flags, "-c", str(source), "-o", str(made)], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{source.name}:\n{done.stderr[:2000]}"
    return made


@pytest.mark.slow
def test_android_objects_need_only_bionic(tmp_path: Path) -> None:
    json = [p for p in (Path("/usr/include"), Path("/usr/local/include")) if (p / "nlohmann").is_dir()]
    libcxx = list(Path("/usr/lib").glob("llvm-*/include/c++/v1"))
    if shutil.which("clang++") is None or not libcxx or not json or not (SYSROOT / "include").is_dir():
        pytest.skip("clang++, libc++-dev, nlohmann-json3-dev or the aarch64 C headers are not installed")
    shutil.copytree(json[0] / "nlohmann", tmp_path / "nlohmann")
    sources = sorted((DEVICE / "src").glob("*.cc"))
    assert len(sources) > 10
    needed: set[str] = set()
    for source in sources:
        made = compile_for_android(source, tmp_path)
        kind = subprocess.run(["readelf", "-h", made], capture_output=True, text=True, check=True).stdout
        assert "AArch64" in kind
        needed |= needed_symbols(["nm", "-u", str(made)])
    assert "sched_setaffinity" in needed
    assert needed - set(kept_symbols()) == set()


def test_bionic_has_what_the_runner_needs(binary: Path) -> None:
    needed = needed_symbols(["nm", "-D", "-u", str(binary)])
    assert {"dlopen", "poll", "sched_setaffinity"} <= needed
    # To add one, look its library and API level up in bionic's libc.map.txt, libm.map.txt or libdl.map.txt.
    assert needed - set(kept_symbols()) == set()


def kept_symbols() -> dict[str, int]:
    """device/bionic-symbols.txt: symbols of Android's C library by the API level that brought them."""
    lines = (DEVICE / "bionic-symbols.txt").read_text().splitlines()
    words = [line.split() for line in lines if line and not line.startswith("#")]
    kept = {name: int(api) for name, _, api in words}
    assert all(api <= 29 for api in kept.values())
    return kept


def needed_symbols(command: list[str]) -> set[str]:
    """C symbols in nm's list of undefined ones, under the names bionic has for them."""
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = re.findall(r" U (\w+)(?:@GLIBC_[\d.]+)?$", listed, re.MULTILINE)
    return {BIONIC.get(name, name) for name in names if not RUNTIME.match(name)}


RUNTIME = re.compile(r"_Z|__cxa_(?!atexit|finalize)|_Unwind_|__gxx_|__dso_handle|__libc_|__getauxval")
"""The C++ runtime, which Android's build links statically, and glibc's own start-up code."""

BIONIC = {"__errno_location": "__errno", "__assert_fail": "__assert2"}
"""What two glibc names are called there."""
