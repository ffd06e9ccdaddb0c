#include "npu_probe.h"

#include <dlfcn.h>

#include <cstdint>
#include <nlohmann/json.hpp>

namespace hexgraft {
namespace {

using Json = nlohmann::json;

// Of FastRPC's interface (remote.h of github.com/quic/fastrpc).
constexpr std::uint32_t kGetDspInfo = 2;
constexpr std::uint32_t kComputeDsp = 3;
constexpr std::uint32_t kUnsignedPd = 1;
constexpr std::uint32_t kArchVersion = 6;
struct Capability {
  std::uint32_t domain, attribute, capability;
};
using Control = int (*)(std::uint32_t request, void* data, std::uint32_t size);

Json ask(Control control, std::uint32_t attribute, Json& error) {
  Capability capability{kComputeDsp, attribute, 0};
  const int code = control(kGetDspInfo, &capability, sizeof capability);
  if (code == 0) return capability.capability;
  error = "FastRPC answers with error " + std::to_string(code);
  return nullptr;
}

}  // namespace

std::string probe_npu(const std::string& library) {
  Json found{{"unsigned_pd", nullptr}, {"arch", nullptr}, {"error", nullptr}};
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  Control control = nullptr;
  if (loaded != nullptr) control = reinterpret_cast<Control>(dlsym(loaded, "remote_handle_control"));
  if (control == nullptr) {
    const char* reason = dlerror();
    found["error"] = reason != nullptr ? reason : library + " has no remote_handle_control";
    return found.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const Json allowed = ask(control, kUnsignedPd, found["error"]);
  if (allowed.is_number()) found["unsigned_pd"] = allowed.get<std::uint32_t>() == 1;
  const Json arch = ask(control, kArchVersion, found["error"]);
  // The low byte is the version in its decimal digits: 0x75 is V75.
  if (arch.is_number()) {
    const std::uint32_t digits = arch.get<std::uint32_t>() & 0xff;
    found["arch"] = (digits >> 4) * 10 + (digits & 0xf);
  }
  return found.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hexgraft
