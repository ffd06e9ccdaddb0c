// What the kernel tells of a device: zones in whatever unit, cores that are off, numbers with gaps.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "stats.h"

using namespace hexgraft;
namespace fs = std::filesystem;

namespace {

void put(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

}  // namespace

int main() {
  char folder[] = "/tmp/hexgraft-stats-XXXXXX";
  CHECK(::mkdtemp(folder) != nullptr);
  const std::string root = folder, zone = root + "/class/thermal/thermal_zone";
  const std::string cores = root + "/devices/system/cpu/";
  CHECK(thermal_stats(root).empty() && frequency_stats(root).empty());
  put(zone + "0/type", "cpu-0");
  put(zone + "0/temp", "36100");
  put(zone + "1/type", "no-temperature");
  put(zone + "3/type", "battery");  // there is no zone 2
  put(zone + "3/temp", "301");
  put(zone + "10/type", "skin");
  put(zone + "10/temp", "33");
  put(zone + "11/type", "cold");
  put(zone + "11/temp", "-1000");
  put(root + "/class/thermal/cooling_device0/type", "fan");
  const auto zones = thermal_stats(root);
  CHECK(zones.size() == 4);
  CHECK(zones["cpu-0"] == 36.1 && zones["battery"] == 30.1 && zones["skin"] == 33.0 && zones["cold"] == -1.0);
  put(cores + "cpu0/cpufreq/scaling_cur_freq", "2265600");
  put(cores + "cpu1/online", "0");  // a core that is off has no clock
  put(cores + "cpu7/cpufreq/scaling_cur_freq", "3302400");
  put(cores + "cpufreq/policy0/scaling_cur_freq", "1");
  put(cores + "cpuidle/current_driver", "none");
  const auto clocks = frequency_stats(root);
  CHECK(clocks.size() == 2 && clocks["0"] == 2265600 && clocks["7"] == 3302400);
  fs::remove_all(folder);
  return REPORT();
}
