"""The C++ tests, the fuzzer, and what the binary asks of the system it runs on."""

from __future__ import annotations

import re
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
from native_build import DEVICE, built, run_ctest

from hexgraft.host.runner.wire import PROTOCOL, pack_frame


def test_native_tests(build: Path) -> None:
    run_ctest(build)


@pytest.mark.slow
def test_native_tests_under_sanitizers(asan_build: Path) -> None:
    run_ctest(asan_build)


@pytest.mark.slow
def test_a_minute_of_fuzzing(tmp_path: Path) -> None:
    folder = built("fuzz", "clang++")
    (tmp_path / "new").mkdir()
    # The same runs each time, as far as a minute goes.
    words = ["-seed=1", "-max_total_time=60", "-timeout=20", "-rss_limit_mb=2048"]
    words += [f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [folder / "fuzz_frames", *words, tmp_path / "new", DEVICE / "fuzz" / "corpus"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"Done [1-9]\d{3,} runs", done.stderr)


def test_runtime_is_not_linked(binary: Path) -> None:
    needed = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
    assert "NEEDED" in needed
    assert "onnxruntime" not in needed
    symbols = subprocess.run(["nm", "-D", "-u", binary], capture_output=True, text=True, check=True).stdout
    assert "dlopen" in symbols
    assert "Ort" not in symbols


def test_files_are_of_readable_size() -> None:
    sizes = {file: len(file.read_text().splitlines()) for file in DEVICE.glob("*/*.[ch]*")}
    assert len(sizes) > 25
    assert {file.name: lines for file, lines in sizes.items() if lines > 400} == {}


def test_documented_bytes_are_those_of_a_request() -> None:
    documented = (DEVICE / "PROTOCOL.md").read_text()
    block = documented.split("The smallest request")[1].split("```")[1]
    pairs: list[str] = []
    for line in block.splitlines():
        pairs += takewhile(re.compile(r"[0-9a-f]{2}").fullmatch, line.split())
    assert bytes.fromhex("".join(pairs)) == pack_frame({"id": 1, "ops": [{"op": "stats"}]})


def test_every_operation_is_documented() -> None:
    documented = (DEVICE / "PROTOCOL.md").read_text()
    verbs = re.findall(r'\{"(\w+)", &Session::\w+\}', (DEVICE / "src" / "session.cc").read_text())
    assert len(verbs) == 13
    assert f"Version **{PROTOCOL}**" in documented
    assert f"kProtocol = {PROTOCOL};" in (DEVICE / "src" / "session.h").read_text()
    for verb in verbs:
        assert f"### `{verb}`" in documented
    codes = set()
    for file in (DEVICE / "src").glob("*.cc"):
        codes |= set(re.findall(r'(?:Error|runtime_error)[({]"(\w+)"', file.read_text()))
    assert len(codes) > 12
    for code in codes:
        assert f"| `{code}` |" in documented, code
