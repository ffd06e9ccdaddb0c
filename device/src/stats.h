// What the kernel tells of this process and this device, where it tells anything.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace hexgraft {

// Bytes: "resident" and "peak" of this process, "private" (not shared with others), "available" on the device.
nlohmann::json memory_stats();

// Degrees Celsius by zone type, of `root`/class/thermal.
nlohmann::json thermal_stats(const std::string& root = "/sys");

// Current kHz by core number, of `root`/devices/system/cpu.
nlohmann::json frequency_stats(const std::string& root = "/sys");

}  // namespace hexgraft
