// Which cores the runner computes on, and what the kernel made of the wish.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hexgraft {

// The cores this process may use whose top frequency is within 80 % of the fastest; all of them where the kernel
// tells no frequency. Threads beyond the big cores slow a phone down many times over. `root` is "/sys" outside
// tests.
std::vector<int> big_cores(const std::string& root = "/sys");

// Cores the calling thread may run on, read from the kernel.
std::vector<int> current_affinity();

// Keep the calling thread, and threads it will start, on `cores`. Read `current_affinity` afterwards: some kernels
// accept and ignore it.
void set_affinity(const std::vector<int>& cores);

// Cores every thread of this process may run on, by thread id.
std::vector<std::pair<int, std::vector<int>>> thread_affinities();

}  // namespace hexgraft
