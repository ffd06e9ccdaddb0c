"""What a phone is and how it is doing: chip, Android, memory, space, temperatures, clocks, battery, screen,
NPU nodes and vendor libraries. One shell command gathers all of it."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.shell import quote

_MARK = "=== "
# The folder may not be there yet, its parents are.
_SPACE = 'while [ -n "$d" ] && [ ! -d "$d" ]; do d=${d%/*}; done; df -k "${d:-/}"'
# Whatever is missing on a phone shows as an empty section.
_SCRIPT = """\
echo '=== properties'; getprop
echo '=== memory'; cat /proc/meminfo
echo '=== space'; d=ROOT; SPACE
echo '=== loader'; ls /system/bin/linker64 2>/dev/null; uname -m
echo '=== boot'; cat /proc/sys/kernel/random/boot_id
echo '=== thermal'
for z in /sys/class/thermal/thermal_zone*; do
  t=; n=; read -r t < $z/temp; read -r n < $z/type; echo "$n $t"
done 2>/dev/null
echo '=== clocks'
for c in /sys/devices/system/cpu/cpu[0-9]*/cpufreq; do
  m=; f=; read -r m < $c/cpuinfo_max_freq; read -r f < $c/scaling_cur_freq; echo "$m $f"
done 2>/dev/null
echo '=== nodes'; for n in /dev/fastrpc-* /dev/adsprpc-*; do [ -e $n ] && echo ${n##*/}; done
echo '=== vendor'
for f in /vendor/lib64/libcdsprpc.so /vendor/lib64/libQnn*.so /vendor/lib/rfsa/adsp/libQnn*.so \
  /vendor/dsp/cdsp/libQnn*.so; do [ -e $f ] && echo ${f##*/}; done
echo '=== battery'; dumpsys battery 2>/dev/null
echo '=== power'; dumpsys power 2>/dev/null | grep -m1 mWakefulness=
true
"""


class Zone(NamedTuple):
    """A thermal zone and its temperature in degrees Celsius."""

    name: str
    degrees: float


class Clock(NamedTuple):
    """A core's highest and present frequency in kHz."""

    top: int
    now: int


class PhoneFacts(msgspec.Struct, frozen=True):
    """Sizes in bytes. `target` is the kind of runner it needs, `nodes` lie in /dev. What is not known is
    empty or None."""

    serial: str
    model: str
    manufacturer: str
    soc: str
    board: str
    android: str
    api: int | None
    abi: str
    target: str
    memory: int | None
    memory_free: int | None
    space: int | None
    space_free: int | None
    boot: str
    zones: list[Zone]
    clocks: list[Clock]
    battery: int | None
    plugged: bool | None
    awake: bool | None
    nodes: list[str]
    vendor: list[str]

    @property
    def hottest(self) -> Zone | None:
        """The warmest zone that is plausibly a temperature."""
        return max((z for z in self.zones if -40 < z.degrees < 150), key=lambda z: z.degrees, default=None)

    @property
    def vendor_qnn(self) -> list[str]:
        """QNN libraries of the phone's maker, which are of another release than ours."""
        return [file for file in self.vendor if file.startswith("libQnn")]


def gather(phone: Phone) -> PhoneFacts:
    """Ask the phone. Raises ConnectionLost; a fact that cannot be had is left out."""
    script = _SCRIPT.replace("SPACE", _SPACE).replace("ROOT", quote(phone.root))
    return parse(phone.serial, phone.run(script, "asking for its facts").stdout)


def parse(serial: str, text: str) -> PhoneFacts:
    """The facts in the script's output."""
    sections = _sections(text)
    properties = dict(re.findall(r"^\[([^\]]+)\]: \[(.*)\]$", "\n".join(sections["properties"]), re.M))
    memory = {key: int(kb) * 1024 for key, kb in _pairs(sections["memory"], r"^(\w+):\s+(\d+)")}
    size, free = parse_df(sections["space"])
    battery = dict(_pairs(sections["battery"], r"^\s*([\w ]+): (\S+)$"))
    wakefulness = next((value for _, value in _pairs(sections["power"], r"(mWakefulness)=(\w+)")), None)
    powered = [value for key, value in battery.items() if key.endswith(" powered")]
    return PhoneFacts(
        serial=serial,
        model=properties.get("ro.product.model", ""),
        manufacturer=properties.get("ro.product.manufacturer", ""),
        soc=properties.get("ro.soc.model", ""),
        board=properties.get("ro.board.platform", ""),
        android=properties.get("ro.build.version.release", ""),
        api=_number(properties.get("ro.build.version.sdk")),
        abi=properties.get("ro.product.cpu.abi", ""),
        target=_target(sections["loader"]),
        memory=memory.get("MemTotal"),
        memory_free=memory.get("MemAvailable"),
        space=size,
        space_free=free,
        boot="".join(sections["boot"]).strip(),
        zones=[
            Zone(name, _degrees(int(raw))) for name, raw in _pairs(sections["thermal"], r"^(\S+) (-?\d+)$")
        ],
        clocks=[Clock(int(top), int(now)) for top, now in _pairs(sections["clocks"], r"^(\d+) (\d+)$")],
        battery=_number(battery.get("level")),
        plugged="true" in powered if powered else None,
        awake=wakefulness == "Awake" if wakefulness else None,
        nodes=sections["nodes"],
        vendor=sections["vendor"],
    )


def free_space(phone: Phone) -> int | None:
    """Free bytes where our folder lies or will lie, None where the phone does not tell."""
    command = f"d={quote(phone.root)}; {_SPACE}"
    return parse_df(phone.run(command, "asking for free space").stdout.splitlines())[1]


def parse_df(lines: list[str]) -> tuple[int | None, int | None]:
    """Size and free bytes of `df -k`; a long device name may push the figures onto the next line."""
    words = " ".join(lines[1:]).split()
    figures = next(
        (words[i : i + 3] for i in range(len(words) - 2) if all(map(str.isdigit, words[i : i + 3]))), []
    )
    if not figures:
        return None, None
    return int(figures[0]) * 1024, int(figures[2]) * 1024


def _sections(text: str) -> dict[str, list[str]]:
    names = re.findall(rf"^{_MARK}(\w+)$", _SCRIPT.replace("echo '", "").replace("'", "\n"), re.M)
    found: dict[str, list[str]] = {name: [] for name in names}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            current = found.setdefault(line.removeprefix(_MARK).strip(), [])
        else:
            current.append(line.rstrip("\r"))
    return found


def _pairs(lines: list[str], pattern: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for line in lines if (match := re.search(pattern, line))]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _degrees(raw: int) -> float:
    """Zones count in thousandths of a degree, a few in tenths or whole ones."""
    return raw / 1000 if abs(raw) >= 1000 else raw / 10 if abs(raw) >= 150 else float(raw)


def _target(lines: list[str]) -> str:
    """Android, or a Linux that speaks adb: the libraries a runner needs differ."""
    machine = lines[-1].strip() if lines else ""
    if any(line.startswith("/") for line in lines):
        return "android-arm64" if machine in ("aarch64", "arm64") else f"android-{machine}"
    return f"linux-{machine}"
