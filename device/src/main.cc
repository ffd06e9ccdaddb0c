// hexgraft-runner: what a phone runs. Speaks PROTOCOL.md on stdin and stdout until `bye` or the end of its input.

#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "frames.h"
#include "npu_probe.h"
#include "record.h"
#include "runtime.h"
#include "session.h"

#ifndef HEXGRAFT_VERSION
#error "the build says which hexgraft this is"
#endif

namespace hexgraft {
namespace {

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kHostGone = 3 };

constexpr const char* kUsageText =
    "usage: hexgraft-runner [--ort PATH] [--qnn PATH] [--htp-backend PATH] [--caches FOLDER] [--record FILE]\n"
    "                       [--rest MILLISECONDS]\n"
    "       hexgraft-runner --version | --probe-npu LIBRARY\n"
    "Speaks hexgraft's wire protocol on stdin and stdout; `hexgraft` starts it.\n";

struct Arguments {
  RuntimePaths paths;
  std::string caches, record;
  int rest = 2000;  // milliseconds without a request after which a raised clock is given back
};

bool parse(int count, char** words, Arguments& arguments) {
  std::string rest = std::to_string(arguments.rest);
  const std::map<std::string, std::string*> known{
      {"--ort", &arguments.paths.ort}, {"--qnn", &arguments.paths.qnn}, {"--htp-backend", &arguments.paths.backend},
      {"--caches", &arguments.caches}, {"--record", &arguments.record}, {"--rest", &rest}};
  for (int i = 1; i + 1 < count; i += 2) {
    const auto target = known.find(words[i]);
    if (target == known.end()) return false;
    *target->second = words[i + 1];
  }
  if (rest.empty() || rest.size() > 8 || rest.find_first_not_of("0123456789") != std::string::npos) return false;
  arguments.rest = std::stoi(rest);
  return count % 2 == 1;
}

// Ends the process when the host is gone while a pass or a load keeps the main thread from noticing. A main thread
// that is only waiting for input sees the end itself, within the grace period.
void watch_input() {
  constexpr short kGone =
      POLLHUP | POLLRDHUP | POLLERR | POLLNVAL;  // a pipe's end, or a socket's, half closed or whole
  pollfd input{STDIN_FILENO, POLLRDHUP, 0};
  while (::poll(&input, 1, -1) < 0 || (input.revents & kGone) == 0) {
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  Record::end_now("host gone while busy");
  ::_exit(kHostGone);
}

// As a signal nobody handles would, after the record's last line.
void end_by_signal(int number) {
  Record::end_now(number == SIGHUP ? "hang-up" : "signal");
  ::signal(number, SIG_DFL);
  ::raise(number);
}

Bytes hello(const Result<std::shared_ptr<Runtime>>& runtime, Runtime* loaded) {
  Json frame{{"hello", "hexgraft"},       {"protocol", kProtocol}, {"version", HEXGRAFT_VERSION},
             {"build", HEXGRAFT_BUILD},   {"pid", ::getpid()},     {"frame_limit", kFrameLimit},
             {"providers", Json::array()}};
  if (loaded != nullptr) {
    frame["ort"] = {{"version", loaded->version()}, {"api", loaded->api()}};
    frame["providers"] = loaded->providers();
  } else {
    const Error& error = runtime.error();
    frame["error"] = {{"code", error.code}, {"message", error.message}, {"hint", error.hint}};
  }
  return Json::to_msgpack(frame);
}

// How the conversation ended, for the record.
ExitCode ended(Record& record, const char* how, ExitCode code) {
  record.write("end", {{"how", how}});
  return code;
}

ExitCode serve(int output, const Arguments& arguments, Record& record) {
  Result<std::shared_ptr<Runtime>> runtime = Runtime::open(arguments.paths, [&](const std::string& line) {
    record.write("log", {{"line", line}});
  });
  Runtime* loaded = runtime ? (*runtime).get() : nullptr;
  const auto load = [&](const LoadRequest& request) -> Result<std::unique_ptr<Model>> {
    if (loaded == nullptr) return runtime.error();
    return loaded->load(request);
  };
  Observer observe;
  if (record.open()) observe = [&](const char* event, Json fields) { record.write(event, std::move(fields)); };
  Session session(load, arguments.caches, observe);
  const std::string version = loaded != nullptr ? loaded->version() : runtime.error().message;
  record.write("start", {{"version", HEXGRAFT_VERSION},
                         {"build", HEXGRAFT_BUILD},
                         {"protocol", kProtocol},
                         {"pid", ::getpid()},
                         {"time", ::time(nullptr)},
                         {"ort", version}});
  FrameReader reader(STDIN_FILENO);
  const FrameWriter writer(output);
  if (!writer.write(hello(runtime, loaded))) return ended(record, "host gone", kHostGone);
  Bytes message;
  while (!session.finished()) {
    if (!reader.wait(arguments.rest)) session.rest();
    const ReadOutcome outcome = reader.read(message);
    if (outcome == ReadOutcome::kEnd) return ended(record, "end of input", kOk);
    if (outcome == ReadOutcome::kTruncated) return ended(record, "end of input inside a frame", kFailed);
    const Bytes answer =
        outcome == ReadOutcome::kTooLarge
            ? Session::answer_error({"too_large", "a frame passes the frame limit", "send less at a time"})
            : session.answer(message);
    if (!writer.write(answer)) return ended(record, "host gone", kHostGone);
  }
  return ended(record, "bye", kOk);
}

}  // namespace
}  // namespace hexgraft

int main(int count, char** words) {
  using namespace hexgraft;
  if (count == 2 && std::strcmp(words[1], "--version") == 0) {
    std::printf("hexgraft-runner %s protocol %d %s\n", HEXGRAFT_VERSION, kProtocol, HEXGRAFT_BUILD);
    return kOk;
  }
  if (count == 3 && std::strcmp(words[1], "--probe-npu") == 0) {
    std::puts(probe_npu(words[2]).c_str());
    std::fflush(nullptr);
    ::_exit(kOk);  // the vendor's library may hang in its destructors
  }
  Arguments arguments;
  if (!parse(count, words, arguments)) {
    std::fputs(kUsageText, stderr);
    return kUsage;
  }
  // ONNX Runtime would tell its makers of this process. Who has set it means it.
  ::setenv("ORT_DISABLE_TELEMETRY", "1", 0);
  // Whoever starts the runner may have told it to ignore these.
  for (const int number : {SIGHUP, SIGTERM, SIGINT}) ::signal(number, end_by_signal);
  ::signal(SIGPIPE, SIG_IGN);
  // Runtime libraries print to stdout, which is the protocol's: give it a descriptor of its own and them stderr.
  const int output = ::dup(STDOUT_FILENO);
  if (output < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    std::fputs("hexgraft-runner: stdout or stderr is closed\n", stderr);
    return kFailed;
  }
  std::thread(watch_input).detach();
  Record record(arguments.record);
  if (!arguments.record.empty() && !record.open()) {
    std::fprintf(stderr, "hexgraft-runner: %s cannot be written\n", arguments.record.c_str());
  }
  const ExitCode code = serve(output, arguments, record);
  std::fflush(nullptr);
  // No destructors: provider libraries are known to hang or crash in theirs, and the kernel frees everything.
  ::_exit(code);
}
