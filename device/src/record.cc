#include "record.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "stats.h"

namespace hexgraft {
namespace {

using Json = nlohmann::json;

constexpr double kStateSeconds = 10;
volatile sig_atomic_t last_fd = -1;

}  // namespace

Record::Record(const std::string& path, std::int64_t limit)
    : left_(limit), start_(std::chrono::steady_clock::now()) {
  if (!path.empty()) fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  last_fd = fd_;
}

double Record::now() const {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return std::round(seconds * 1e4) / 1e4;
}

void Record::write(const char* event, Json fields) {
  if (fd_ < 0) return;
  const std::lock_guard<std::mutex> lock(writing_);
  const double t = now();
  fields["event"] = event;
  fields["t"] = t;
  line(fields);
  if (t >= state_) {
    state_ = t + kStateSeconds;
    line(Json{{"event", "state"},
              {"t", now()},
              {"thermal", thermal_stats()},
              {"frequency", frequency_stats()},
              {"memory", memory_stats()}});
  }
}

void Record::line(const Json& fields) {
  // What a library says may be of any encoding.
  const std::string text = fields.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (left_ <= 0) return;
  left_ -= static_cast<std::int64_t>(text.size());
  const std::string full = left_ > 0 ? text : "{\"event\":\"full\"}\n";
  if (::write(fd_, full.data(), full.size()) < 0) left_ = 0;  // a full disk ends the record, not the run
}

void Record::end_now(const char* how) {
  constexpr char kBegin[] = "{\"event\":\"end\",\"how\":\"", kEnd[] = "\"}\n";
  char line[128];
  const std::size_t size = std::strlen(how);
  if (last_fd < 0 || sizeof kBegin + size + sizeof kEnd > sizeof line) return;
  char* at = line;
  for (const auto& [text, length] : {std::pair(kBegin, sizeof kBegin - 1), {how, size}, {kEnd, sizeof kEnd - 1}}) {
    std::memcpy(at, text, length);
    at += length;
  }
  if (::write(last_fd, line, static_cast<std::size_t>(at - line)) < 0) return;
}

}  // namespace hexgraft
