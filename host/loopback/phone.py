"""The phone a loopback device presents: properties, memory, thermal zones, clocks, battery, vendor files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PhoneModel:
    """What the phone says of itself. `vendor` are files of the vendor partition that exist, by full path."""

    model: str = "SM-S928B"
    product: str = "e3qxxx"
    device: str = "e3q"
    manufacturer: str = "samsung"
    soc: str = "SM8650"
    soc_maker: str = "QTI"
    android: str = "14"
    api: int = 34
    abi: str = "arm64-v8a"
    memory_mb: int = 11_300
    available_mb: int = 6_100
    temperatures: dict[str, float] = field(
        default_factory=lambda: {"cpu-0-0-0": 36.1, "nsphvx-0": 34.8, "skin-therm": 31.2}
    )
    clocks_khz: tuple[int, ...] = (2265600, 2265600, 3148800, 3148800, 3148800, 2956800, 2956800, 3302400)
    battery: int = 82
    plugged: bool = True
    awake: bool = True
    nodes: tuple[str, ...] = ("/dev/fastrpc-cdsp", "/dev/fastrpc-adsp")
    vendor: tuple[str, ...] = ("/vendor/lib64/libcdsprpc.so", "/vendor/lib/rfsa/adsp/libQnnHtpV75Skel.so")
    logcat: str = "11-29 21:00:00.000  1000  1000 I ActivityManager: Start proc\n"

    def properties(self) -> dict[str, str]:
        return {
            "ro.product.model": self.model,
            "ro.product.name": self.product,
            "ro.product.device": self.device,
            "ro.product.manufacturer": self.manufacturer,
            "ro.soc.model": self.soc,
            "ro.soc.manufacturer": self.soc_maker,
            "ro.build.version.release": self.android,
            "ro.build.version.sdk": str(self.api),
            "ro.product.cpu.abi": self.abi,
            "sys.boot_completed": "1",
        }

    def banner(self, features: str) -> bytes:
        """What adbd greets with; the list of devices takes the names from it."""
        parts = (
            f"ro.product.name={self.product}",
            f"ro.product.model={self.model}",
            f"ro.product.device={self.device}",
            f"features={features}",
        )
        return ("device::" + ";".join(parts) + ";").encode()

    def write(self, folder: Path) -> None:
        """Lay the phone's files out in its sandbox."""

        def put(name: str, text: str) -> None:
            file = folder / name.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

        put("properties", "".join(f"{key}={value}\n" for key, value in self.properties().items()))
        total, free = self.memory_mb * 1024, self.available_mb * 1024
        put("/proc/meminfo", f"MemTotal: {total} kB\nMemFree: {free // 2} kB\nMemAvailable: {free} kB\n")
        put("/proc/cpuinfo", "".join(f"processor\t: {core}\n" for core in range(len(self.clocks_khz))))
        for number, (name, degrees) in enumerate(self.temperatures.items()):
            put(f"/sys/class/thermal/thermal_zone{number}/type", name + "\n")
            put(f"/sys/class/thermal/thermal_zone{number}/temp", f"{round(degrees * 1000)}\n")
        for core, clock in enumerate(self.clocks_khz):
            for name, value in (("cpuinfo_max_freq", clock), ("scaling_cur_freq", clock // 2)):
                put(f"/sys/devices/system/cpu/cpu{core}/cpufreq/{name}", f"{value}\n")
        put("dumpsys/battery", _battery(self.battery, self.plugged))
        wakefulness = "Awake" if self.awake else "Asleep"
        put("dumpsys/power", f"POWER MANAGER (dumpsys power)\n  mWakefulness={wakefulness}\n")
        for name in (*self.nodes, *self.vendor):
            put(name, "")
        put("logcat", self.logcat)
        put("settings/global.stay_on_while_plugged_in", "0\n")


def _battery(level: int, plugged: bool) -> str:
    return (
        "Current Battery Service state:\n"
        f"  AC powered: false\n  USB powered: {str(plugged).lower()}\n  Wireless powered: false\n"
        f"  level: {level}\n  scale: 100\n  temperature: 301\n"
    )


PHONES = {
    "s24-ultra": PhoneModel(),
    "s25": PhoneModel(
        model="SM-S931B", product="pa1qxxx", device="pa1q", soc="SM8750", android="15", api=35,
        vendor=("/vendor/lib64/libcdsprpc.so", "/vendor/lib/rfsa/adsp/libQnnHtpV79Skel.so"),
    ),
    "s23": PhoneModel(
        model="SM-S911B", product="dm1qxxx", device="dm1q", soc="SM8550",
        vendor=("/vendor/lib64/libcdsprpc.so", "/vendor/lib/rfsa/adsp/libQnnHtpV73Skel.so"),
    ),
    "s22": PhoneModel(
        model="SM-S901E", product="r0qxxx", device="r0q", soc="SM8450", android="13", api=33,
        vendor=("/vendor/lib64/libcdsprpc.so", "/vendor/lib/rfsa/adsp/libQnnHtpV69Skel.so"),
    ),
    "no-npu": PhoneModel(
        model="Pixel 8", product="shiba", device="shiba", manufacturer="Google", soc="Tensor G3",
        soc_maker="Google", nodes=(), vendor=(),
    ),
}  # fmt: skip
"""Phones one can ask for, by name."""
