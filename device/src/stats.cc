#include "stats.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <sstream>

namespace hexgraft {
namespace {

using Json = nlohmann::json;

constexpr int kMostZones = 256;

// The number of lines that begin with `name` in a file of "Name:  123 kB" lines, in bytes, added up.
void read_kilobytes(const std::string& path, const std::string& name, const char* as, Json& into) {
  std::ifstream file(path);
  std::string line;
  std::uint64_t total = 0;
  bool found = false;
  while (std::getline(file, line)) {
    if (line.compare(0, name.size(), name) != 0) continue;
    std::uint64_t value = 0;
    if (std::istringstream(line.substr(line.find(':') + 1)) >> value) {
      total += value * 1024;
      found = true;
    }
  }
  if (found) into[as] = total;
}

// Resident pages that are not shared with a file, where the kernel gives no better account.
void read_private_pages(Json& into) {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0, shared = 0;
  if (file >> all >> resident >> shared && resident >= shared) {
    into["private"] = (resident - shared) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
}

}  // namespace

Json memory_stats() {
  Json memory = Json::object();
  read_kilobytes("/proc/self/status", "VmRSS", "resident", memory);
  read_kilobytes("/proc/self/status", "VmHWM", "peak", memory);
  read_kilobytes("/proc/self/smaps_rollup", "Private_", "private", memory);
  if (!memory.contains("private")) read_private_pages(memory);
  read_kilobytes("/proc/meminfo", "MemAvailable", "available", memory);
  return memory;
}

Json thermal_stats(const std::string& root) {
  Json zones = Json::object();
  for (int i = 0; i < kMostZones; ++i) {
    const std::string zone = root + "/class/thermal/thermal_zone" + std::to_string(i);
    std::ifstream type(zone + "/type"), temperature(zone + "/temp");
    std::string name;
    double milli = 0;
    if (!(type >> name)) break;
    if (!(temperature >> milli)) continue;
    // Most kernels give thousandths of a degree, some whole degrees.
    zones[name] = milli > 1000 || milli < -1000 ? milli / 1000 : milli;
  }
  return zones;
}

Json frequency_stats(const std::string& root) {
  Json cores = Json::object();
  for (int i = 0; i < kMostZones; ++i) {
    const std::string core = root + "/devices/system/cpu/cpu" + std::to_string(i);
    std::ifstream file(core + "/cpufreq/scaling_cur_freq");
    std::uint64_t frequency = 0;
    if (!(file >> frequency)) break;
    cores[std::to_string(i)] = frequency;
  }
  return cores;
}

}  // namespace hexgraft
