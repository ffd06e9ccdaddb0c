"""Numbers the vendor's libraries fail with, as a cause and what to do about it.

The ranges are those of QNN's headers (1000 common, 5000 context, 6000 graph, 14000 device, 30000 system);
causes are what public reports of each number turned out to be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong on the phone and what to type or change next."""

    cause: str
    hint: str


_REBUILD = "export for this phone's chip, with the QAIRT release of the libraries on it: hexgraft doctor"
_SKEL = Diagnosis(
    "the NPU could not load libQnnHtpV*Skel.so: missing, of another release, or for another Hexagon version",
    "gather stub and skel of one QAIRT release for this chip: hexgraft device sdk --qairt SDK",
)
_CODES = {
    1002: Diagnosis(
        "the NPU process ran out of memory or was refused (unsigned PD)",
        "close what else uses the NPU, use a smaller context, or a phone that allows the shell unsigned PD",
    ),
    1003: Diagnosis("the phone's FastRPC service does not answer", "reboot the phone: adb reboot"),
    4000: _SKEL,
    5000: Diagnosis(
        "the context binary is for another chip, or newer than the libraries on the phone", _REBUILD
    ),
    5004: Diagnosis("the context binary is of another QAIRT release than the libraries", _REBUILD),
    5005: Diagnosis(
        "the NPU could not take the context binary: for another chip, asking for more VTCM than it has, "
        "or too large for the memory that is free",
        _REBUILD + "; then try a smaller --context or --vtcm",
    ),
    6001: Diagnosis(
        "a graph failed on the NPU", "run again; if it repeats, try --provider cpu on the same phone"
    ),
    14001: _SKEL,
    30002: Diagnosis(
        "libQnnSystem.so could not read the context binary: the file is damaged or newer than the library",
        _REBUILD,
    ),
    30010: Diagnosis("libQnnSystem.so does not know the file as a context binary", _REBUILD),
}
_PHRASES = (
    (
        re.compile(r"CANNOT LINK EXECUTABLE.*?library \"([^\"]+)\" not found", re.S),
        "the phone's loader did not find {0}",
        "gather it and push again: hexgraft device sdk --target android-arm64",
    ),
    (
        re.compile(r"CANNOT LINK EXECUTABLE.*?cannot locate symbol \"([^\"]+)\"", re.S),
        "a library lacks the symbol {0}: the vendor's own copy was loaded, or releases are mixed",
        "gather all libraries from one release: hexgraft device sdk --target android-arm64",
    ),
    (
        re.compile(r"error while loading shared libraries: ([^:]+)"),
        "the loader did not find {0}",
        "gather it and push again: hexgraft device sdk",
    ),
    (
        re.compile(r"avc:\s+denied\s+\{ ([^}]+) \}.*?tcontext=(\S+)", re.S),
        "SELinux denied `{0}` on {1}",
        "this phone keeps the shell user from it; use another phone, or --provider cpu",
    ),
    (
        re.compile(r"\bSSR\b|ENGINE_ERROR|[Ss]ubsystem restart"),
        "the NPU restarted (SSR)",
        "run again; if it repeats, let the phone cool down and use a smaller context",
    ),
)
_NUMBER = re.compile(
    r"(?:error|err|code|status|failed)\D{0,16}?\b(0x)?([0-9a-f]{4,16})\b|\b(?:setup failed): (\d{4,5})", re.I
)


def diagnose(text: str) -> Diagnosis | None:
    """What a library's message means; None if nothing in it is known."""
    for pattern, cause, hint in _PHRASES:
        if match := pattern.search(text):
            return Diagnosis(cause.format(*match.groups()), hint)
    for match in _NUMBER.finditer(text):
        digits = match[2] or match[3]
        try:
            number = int(digits, 16 if match[1] else 10) & 0xFFFF
        except ValueError:
            continue
        if number in _CODES:
            known = _CODES[number]
            return Diagnosis(f"{known.cause} (QNN error {number})", known.hint)
    return None
