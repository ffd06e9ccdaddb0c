"""What the vendor's libraries print becomes a cause and a hint; what they do not know stays as it is."""

from __future__ import annotations

import pytest

from hexgraft.host.adb.vendor_errors import diagnose


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("QnnDsp <E> Transport layer setup failed: 14001", "could not load libQnnHtpV*Skel.so"),
        ("QnnDsp <E> Failed to load skel, error: 4000", "could not load libQnnHtpV*Skel.so"),
        ("createUnsignedPD unsigned PD not supported by HTP (err 1002)", "unsigned PD"),
        ('"Could not create context from binary for context index = 0 : err 5000"', "another chip, or newer"),
        ("Failed to create context from binary with err 0x138d", "could not take the context binary"),
        ("Failed to create context from binary: error code 5005", "could not take the context binary"),
        ("QNN graph execute error. Error code: 6001", "a graph failed on the NPU"),
        ("Failed to interpret QNN context binary. Error code 30002", "could not read the context binary"),
        ("Failed to interpret QNN context binary. Error code 30010.", "does not know the file"),
        (
            'CANNOT LINK EXECUTABLE "x": library "libQnnHtp.so" not found: needed by',
            "did not find libQnnHtp.so",
        ),
        ('CANNOT LINK EXECUTABLE "x": cannot locate symbol "QnnX" referenced by', "lacks the symbol"),
        ("x: error while loading shared libraries: libfoo.so: cannot open", "did not find libfoo.so"),
        ('avc:  denied  { read } for name="adsprpc" tcontext=u:object_r:vendor:s0', "SELinux denied `read`"),
        ("QNN_COMMON_ERROR: ENGINE_ERROR", "restarted (SSR)"),
        ("adsp: SSR triggered", "restarted (SSR)"),
    ],
)
def test_known_messages(line: str, cause: str) -> None:
    found = diagnose("some line before\n" + line + "\nand one after")
    assert found is not None
    assert cause in found.cause
    assert found.hint


@pytest.mark.parametrize(
    "line",
    [
        "",
        "all is well",
        "allocated 5000 bytes",
        "took 1002 ms",
        "port 14001",
        "error: no such file",
        "Assertion SSRI",
    ],
)
def test_unknown_messages(line: str) -> None:
    assert diagnose(line) is None
