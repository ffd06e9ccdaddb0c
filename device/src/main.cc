// hexgraft-runner: what a phone runs. Speaks PROTOCOL.md on stdin and stdout until `bye` or the end of its input.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "frames.h"
#include "runtime.h"
#include "session.h"

#ifndef HEXGRAFT_VERSION
#error "the build says which hexgraft this is"
#endif

namespace hexgraft {
namespace {

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kHostGone = 3 };

constexpr const char* kUsageText =
    "usage: hexgraft-runner [--ort PATH] [--qnn PATH] [--htp-backend PATH] [--version]\n"
    "Speaks hexgraft's wire protocol on stdin and stdout; `hexgraft` starts it.\n";

bool parse(int count, char** words, RuntimePaths& paths) {
  for (int i = 1; i + 1 < count; i += 2) {
    std::string* target = nullptr;
    if (std::strcmp(words[i], "--ort") == 0) target = &paths.ort;
    if (std::strcmp(words[i], "--qnn") == 0) target = &paths.qnn;
    if (std::strcmp(words[i], "--htp-backend") == 0) target = &paths.backend;
    if (target == nullptr) return false;
    *target = words[i + 1];
  }
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
  ::_exit(kHostGone);
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

ExitCode serve(int output, const RuntimePaths& paths) {
  Result<std::shared_ptr<Runtime>> runtime = Runtime::open(paths);
  Runtime* loaded = runtime ? (*runtime).get() : nullptr;
  Session session([&](const LoadRequest& request) -> Result<std::unique_ptr<Model>> {
    if (loaded == nullptr) return runtime.error();
    return loaded->load(request);
  });
  FrameReader reader(STDIN_FILENO);
  const FrameWriter writer(output);
  if (!writer.write(hello(runtime, loaded))) return kHostGone;
  Bytes message;
  while (!session.finished()) {
    const ReadOutcome outcome = reader.read(message);
    if (outcome == ReadOutcome::kEnd) return kOk;
    if (outcome == ReadOutcome::kTruncated) return kFailed;
    const Bytes answer =
        outcome == ReadOutcome::kTooLarge
            ? Session::answer_error({"too_large", "a frame passes the frame limit", "send less at a time"})
            : session.answer(message);
    if (!writer.write(answer)) return kHostGone;
  }
  return kOk;
}

}  // namespace
}  // namespace hexgraft

int main(int count, char** words) {
  using namespace hexgraft;
  if (count == 2 && std::strcmp(words[1], "--version") == 0) {
    std::printf("hexgraft-runner %s protocol %d %s\n", HEXGRAFT_VERSION, kProtocol, HEXGRAFT_BUILD);
    return kOk;
  }
  RuntimePaths paths;
  if (!parse(count, words, paths)) {
    std::fputs(kUsageText, stderr);
    return kUsage;
  }
  // Whoever starts the runner may have told it to ignore these.
  for (const int number : {SIGHUP, SIGTERM, SIGINT}) ::signal(number, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  // Runtime libraries print to stdout, which is the protocol's: give it a descriptor of its own and them stderr.
  const int output = ::dup(STDOUT_FILENO);
  if (output < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    std::fputs("hexgraft-runner: stdout or stderr is closed\n", stderr);
    return kFailed;
  }
  std::thread(watch_input).detach();
  const ExitCode code = serve(output, paths);
  std::fflush(nullptr);
  // No destructors: provider libraries are known to hang or crash in theirs, and the kernel frees everything.
  ::_exit(code);
}
