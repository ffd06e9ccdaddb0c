#include "threads.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace hexgraft {
namespace {

std::vector<int> affinity_of(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

std::vector<int> current_affinity() { return affinity_of(0); }

std::vector<int> big_cores(const std::string& root) {
  const std::vector<int> allowed = current_affinity();
  std::vector<long> frequencies;
  for (const int core : allowed) {
    std::ifstream file(root + "/devices/system/cpu/cpu" + std::to_string(core) + "/cpufreq/cpuinfo_max_freq");
    long frequency = 0;
    if (!(file >> frequency)) return allowed;
    frequencies.push_back(frequency);
  }
  if (frequencies.empty()) return allowed;
  const long top = *std::max_element(frequencies.begin(), frequencies.end());
  std::vector<int> big;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (frequencies[i] * 10 >= top * 8) big.push_back(allowed[i]);
  }
  return big;
}

void set_affinity(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &set);
  }
  sched_setaffinity(0, sizeof set, &set);
}

std::vector<std::pair<int, std::vector<int>>> thread_affinities() {
  std::vector<std::pair<int, std::vector<int>>> threads;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return threads;
  while (const dirent* entry = readdir(folder)) {
    const int thread = std::atoi(entry->d_name);
    if (thread > 0) threads.emplace_back(thread, affinity_of(thread));
  }
  closedir(folder);
  return threads;
}

}  // namespace hexgraft
