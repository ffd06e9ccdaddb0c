#include "stats.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <vector>

namespace hexgraft {
namespace {

using Json = nlohmann::json;

// The numbers of a folder's entries that are `name` and a number, ascending. There may be gaps.
std::vector<int> numbered(const std::string& folder, const std::string& name) {
  std::vector<int> numbers;
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return numbers;
  while (const dirent* entry = readdir(entries)) {
    const std::string text = entry->d_name;
    const std::string digits = text.compare(0, name.size(), name) == 0 ? text.substr(name.size()) : "";
    const bool plain = digits.find_first_not_of("0123456789") == std::string::npos;
    if (plain && !digits.empty() && digits.size() <= 4) numbers.push_back(std::stoi(digits));
  }
  closedir(entries);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

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
  const std::string folder = root + "/class/thermal/thermal_zone";
  for (const int i : numbered(root + "/class/thermal", "thermal_zone")) {
    std::ifstream type(folder + std::to_string(i) + "/type"), temperature(folder + std::to_string(i) + "/temp");
    std::string name;
    double raw = 0;
    if (!(type >> name) || !(temperature >> raw)) continue;
    // Most kernels give thousandths of a degree, a few tenths or whole degrees.
    const double size = std::abs(raw);
    zones[name] = size >= 1000 ? raw / 1000 : size >= 150 ? raw / 10 : raw;
  }
  return zones;
}

Json frequency_stats(const std::string& root) {
  Json cores = Json::object();
  const std::string folder = root + "/devices/system/cpu";
  for (const int i : numbered(folder, "cpu")) {
    std::ifstream file(folder + "/cpu" + std::to_string(i) + "/cpufreq/scaling_cur_freq");
    std::uint64_t frequency = 0;
    if (file >> frequency) cores[std::to_string(i)] = frequency;  // a core that is off has none
  }
  return cores;
}

}  // namespace hexgraft
