// What a run leaves on the device: loads, passes, errors and the device's state, a JSON object a line. Never text.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace hexgraft {

class Record {
 public:
  // Closed while `path` is empty or cannot be written. It takes no line more once it has `limit` bytes.
  explicit Record(const std::string& path, std::int64_t limit = std::int64_t{8} << 20);
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  bool open() const { return fd_ >= 0; }
  // One line, at once in the kernel's hands: a killed runner loses none. `t` is added, the seconds since the start.
  // Every ten seconds the device's temperatures, clocks and free memory go along. From any thread: the runtime logs
  // from its own.
  void write(const char* event, nlohmann::json fields);
  // The last line of a process that is about to end; a signal handler may call it.
  static void end_now(const char* how);

 private:
  void line(const nlohmann::json& fields);
  double now() const;

  int fd_ = -1;
  std::mutex writing_;  // of what follows
  std::int64_t left_;
  std::chrono::steady_clock::time_point start_;
  double state_ = 0;
};

}  // namespace hexgraft
