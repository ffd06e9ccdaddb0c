#include "runtime.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>
#include <utility>

#include "bundle.h"
#include "ort.h"
#include "ort_graphs.h"
#include "threads.h"

namespace hexgraft {
namespace {

constexpr int kNewestApi = 29;  // of the headers this is written for
constexpr int kOldestApi = 22;
// An x86-64 machine has only the emulator, whose graphs a bundle keeps apart: it cannot load shared binaries.
#if defined(__x86_64__)
constexpr const char* kHtpGraphs = "htp-sim";
#else
constexpr const char* kHtpGraphs = "htp";
#endif
constexpr const char* kQnn = "QNNExecutionProvider";

// What a load may set of the QNN provider; paths stay the command line's business.
const std::set<std::string> kHtpOptions{"soc_model",
                                        "htp_arch",
                                        "device_id",
                                        "vtcm_mb",
                                        "htp_performance_mode",
                                        "rpc_control_latency",
                                        "htp_graph_finalization_optimization_mode",
                                        "enable_htp_fp16_precision",
                                        "offload_graph_io_quantization",
                                        "profiling_level"};

// Memory the NPU reads without a copy, where the provider offers it.
class SharedMemory : public Memory {
 public:
  explicit SharedMemory(const Ort::Session& session)
      : allocator_(session, Ort::MemoryInfo("QnnHtpShared", OrtDeviceAllocator, 0, OrtMemTypeDefault)) {}
  void* allocate(std::size_t bytes) override {
    try {
      return allocator_.Alloc(bytes);
    } catch (const Ort::Exception&) {
      return nullptr;
    }
  }
  void release(void* data) override { allocator_.Free(data); }
  std::string name() const override { return "QnnHtpShared"; }

 private:
  Ort::Allocator allocator_;
};

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

struct Runtime::Environment {
  explicit Environment(Heard told) : heard(std::move(told)) {}
  static void ORT_API_CALL log(void* self, OrtLoggingLevel, const char* category, const char*, const char* where,
                               const char* message) {
    const std::string line = std::string(category) + ": " + message + " [" + where + "]";
    std::fprintf(stderr, "%s\n", line.c_str());
    const auto& heard = static_cast<Environment*>(self)->heard;
    if (heard) heard(line);
  }

  Heard heard;
  Ort::Env env{ORT_LOGGING_LEVEL_ERROR, "hexgraft", log, this};
  bool plugin_registered = false;
};

// Makes the sessions of one model. Lives for one load.
class GraphLoader {
 public:
  GraphLoader(Runtime& runtime, const LoadRequest& request, ModelFiles files)
      : runtime_(runtime), env_(runtime.environment_->env), request_(request), files_(std::move(files)) {}

  Result<std::unique_ptr<Model>> load() { return request_.provider == "cpu" ? load_cpu() : load_htp(); }

 private:
  // The symbolic file in one session, so that the weights are in memory once.
  Result<std::unique_ptr<Model>> load_cpu() {
    const GraphFile& file = files_.graphs.front();
    if (file.vendor) return load_static_cpu();
    if (file.width != 0 || file.capacity != 0) {
      return Error{"bad_graph", "the cpu graph has a fixed size", "export it with symbolic width and capacity"};
    }
    files_.sizes.widths = request_.widths;
    if (!request_.widths.empty()) files_.sizes.max_width = request_.widths.back();
    const int threads = use_cores();
    const Ort::SessionOptions options = cpu_options(threads);
    OrtGraphs::Chains chains;
    chains[{0, 0}].emplace_back(env_, file.path.c_str(), options);
    // Whole: as a device has it that can only grow through the capacities it has graphs of.
    if (!request_.whole) files_.sizes.capacities.clear();
    const int first = request_.whole ? files_.sizes.capacities.front() : std::min(kCacheStep, files_.sizes.context);
    return finish(std::move(chains), threads, first, plain_memory());
  }

  static Ort::SessionOptions cpu_options(int threads) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(threads);
    options.SetInterOpNumThreads(1);
    // Between passes the cores belong to the host and to the other model.
    options.AddConfigEntry("session.force_spinning_stop", "1");
    options.SetLogSeverityLevel(3);
    return options;
  }

  // Graphs in the vendor's layout, which are static wherever they run: one session per width and part.
  Result<std::unique_ptr<Model>> load_static_cpu() {
    if (Status problem = choose_sizes()) return *problem;
    const int threads = use_cores();
    const Ort::SessionOptions options = cpu_options(threads);
    return finish(load_chains(options), threads, files_.sizes.context, plain_memory());
  }

  OrtGraphs::Chains load_chains(const Ort::SessionOptions& options) {
    OrtGraphs::Chains chains;
    for (const GraphFile& file : files_.graphs) {
      chains[{file.width, file.capacity}].emplace_back(env_, file.path.c_str(), options);
    }
    return chains;
  }

  // Static graphs, one session per width, capacity and part, no node of them on the CPU.
  Result<std::unique_ptr<Model>> load_htp() {
    if (Status problem = register_plugin()) return *problem;
    choose_build();
    if (Status problem = choose_sizes()) return *problem;
    const GraphFile& first = files_.graphs.front();
    const int threads = use_cores();
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(threads);
    options.SetLogSeverityLevel(3);
    options.AddConfigEntry("session.disable_cpu_ep_fallback", "1");
    if (first.shared) options.AddConfigEntry("ep.share_ep_contexts", "1");
    if (Status problem = append_qnn(options)) return *problem;
    OrtGraphs::Chains chains = load_chains(options);
    std::shared_ptr<Memory> memory = shared_or_plain(chains.begin()->second.front());
    return finish(std::move(chains), threads, files_.sizes.capacities.front(), std::move(memory));
  }

  Result<std::unique_ptr<Model>> finish(OrtGraphs::Chains chains, int threads, int capacity,
                                        std::shared_ptr<Memory> memory) {
    auto graphs = std::make_unique<OrtGraphs>(files_.sizes, request_.provider, threads, std::move(chains));
    if (Status problem = graphs->check()) return *problem;
    graphs->set_performance(performance_);
    return std::make_unique<Model>(files_.sizes, std::move(memory), capacity, std::move(graphs));
  }

  // Sets this thread's cores, which the runtime's threads inherit, and returns how many threads to run.
  int use_cores() const {
    static const std::vector<int> kBig = big_cores();  // before the first load narrows what this thread may use
    set_affinity(kBig);
    return request_.threads > 0 ? request_.threads : std::max(1, static_cast<int>(kBig.size()));
  }

  Status register_plugin() {
    const std::string& path = runtime_.paths_.qnn;
    if (path.empty() || access(path.c_str(), R_OK) != 0) {
      return Error{"no_provider", "the runner was not given a QNN provider library", "start it with --qnn PATH"};
    }
    if (runtime_.environment_->plugin_registered) return std::nullopt;
    try {
      env_.RegisterExecutionProviderLibrary(kQnn, path);
    } catch (const Ort::Exception& problem) {
      return runtime_error("no_provider", "the QNN provider library cannot be used", problem,
                           "its release must fit the ONNX Runtime it is used with");
    }
    runtime_.environment_->plugin_registered = true;
    return std::nullopt;
  }

  // Keep the graphs of one build, that of the first graph of those asked for.
  void choose_build() {
    std::vector<GraphFile> kept;
    for (const GraphFile& file : files_.graphs) {
      if (kept.empty() || (file.soc_model == kept.front().soc_model && file.precision == kept.front().precision)) {
        kept.push_back(file);
      }
    }
    files_.graphs = std::move(kept);
    if (files_.graphs.front().mask_value != 0) {
      files_.sizes.mask_value = static_cast<float>(files_.graphs.front().mask_value);
    }
  }

  // Keep the graphs of the widths asked for, parts in order; every width must have every capacity, and the largest
  // of these is the context then.
  Status choose_sizes() {
    std::vector<GraphFile> kept;
    std::map<std::pair<int, int>, int> parts;
    std::set<int> widths, capacities;
    std::stable_sort(files_.graphs.begin(), files_.graphs.end(), [](const GraphFile& a, const GraphFile& b) {
      return std::tuple(a.width, a.capacity, a.part) < std::tuple(b.width, b.capacity, b.part);
    });
    const std::vector<int>& asked = request_.widths;
    for (const GraphFile& file : files_.graphs) {
      const bool fits = file.vendor || file.capacity <= files_.sizes.context;
      if (file.width == 0 || file.capacity == 0 || !fits) {
        return Error{"bad_graph", "an htp graph needs a fixed width, and a capacity within the context",
                     "export it again"};
      }
      if (!asked.empty() && std::find(asked.begin(), asked.end(), file.width) == asked.end()) continue;
      if (file.part != parts[{file.width, file.capacity}]++) {
        return Error{"bad_graph", "the parts of an htp graph are not all there, once each", "export it again"};
      }
      widths.insert(file.width);
      capacities.insert(file.capacity);
      kept.push_back(file);
    }
    const bool whole = std::all_of(kept.begin(), kept.end(), [&](const GraphFile& file) {
      return parts[{file.width, file.capacity}] == file.parts;
    });
    const bool vendor = files_.sizes.columns > 0;
    if (!vendor && parts.size() != widths.size() * capacities.size()) {
      return Error{"bad_graph", "not every width has an htp graph for each capacity", "export it again"};
    }
    files_.sizes.widths.assign(widths.begin(), widths.end());
    if (widths.empty() || !whole || (!asked.empty() && files_.sizes.widths != asked)) {
      return Error{"no_graph", "the bundle has not one htp graph for each width asked for", "choose widths it has"};
    }
    files_.graphs = std::move(kept);
    files_.sizes.max_width = files_.sizes.widths.back();
    files_.sizes.capacities.assign(capacities.begin(), capacities.end());
    if (vendor) {  // as many slots as every width can address
      files_.sizes.capacities = {*capacities.begin()};
      for (const GraphFile& file : files_.graphs) merge(file.border, files_.sizes.borders[file.width]);
    }
    files_.sizes.context = files_.sizes.capacities.back();
    return std::nullopt;
  }

  // What the parts of one width say together.
  static void merge(const Border& from, Border& to) {
    const auto take = [](const Code& code, Code& into) {
      if (code.type != Type::kFloat) into = code;
    };
    take(from.mask, to.mask);
    take(from.cos, to.cos);
    take(from.sin, to.sin);
    take(from.logits, to.logits);
    to.last_logits = to.last_logits || from.last_logits;
  }

  Status append_qnn(Ort::SessionOptions& options) {
    const std::string& backend = runtime_.paths_.backend;
    std::unordered_map<std::string, std::string> settings{
        {"backend_path", backend.empty() ? folder_of(runtime_.paths_.qnn) + "/libQnnHtp.so" : backend},
        {"htp_performance_mode", "burst"},
        // Quantising at the graph's border belongs to the NPU too: the other way is a CPU node.
        {"offload_graph_io_quantization", "0"}};
    const GraphFile& first = files_.graphs.front();
    if (first.soc_model > 0) settings["soc_model"] = std::to_string(first.soc_model);
    if (first.vtcm_mb > 0) settings["vtcm_mb"] = std::to_string(first.vtcm_mb);
    for (const auto& [name, value] : request_.options) {
      if (kHtpOptions.count(name) == 0) {
        return Error{"bad_field", "`options` has the unknown entry `" + name + "`", "see PROTOCOL.md"};
      }
      settings[name] = value;
    }
    performance_ = settings["htp_performance_mode"];
    std::vector<Ort::ConstEpDevice> devices;
    for (const Ort::ConstEpDevice& device : env_.GetEpDevices()) {
      if (std::string(device.EpName()) == kQnn) devices.push_back(device);
    }
    if (devices.empty()) {
      return Error{"no_provider", "the QNN provider found no device here", "on Linux it needs /dev/fastrpc-cdsp*"};
    }
    devices.resize(1);
    options.AppendExecutionProvider_V2(env_, devices, settings);
    return std::nullopt;
  }

  // Falling back is said in the answer to `load`, whose `memory` names what is used.
  static std::shared_ptr<Memory> shared_or_plain(const Ort::Session& session) {
    try {
      auto memory = std::make_shared<SharedMemory>(session);
      void* trial = memory->allocate(4096);
      if (trial != nullptr) {
        memory->release(trial);
        return memory;
      }
    } catch (const Ort::Exception&) {  // the provider offers none
    }
    return plain_memory();
  }

  Runtime& runtime_;
  Ort::Env& env_;
  const LoadRequest& request_;
  ModelFiles files_;
  std::string performance_;  // the NPU's power mode, empty on the CPU
};

Result<std::shared_ptr<Runtime>> Runtime::open(const RuntimePaths& paths, Heard heard) {
  const std::string name = paths.ort.empty() ? "libonnxruntime.so" : paths.ort;
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return Error{"no_runtime", std::string("ONNX Runtime cannot be loaded: ") + (reason != nullptr ? reason : name),
                 "start the runner with --ort PATH"};
  }
  void* symbol = dlsym(library, "OrtGetApiBase");
  if (symbol == nullptr)
    return Error{"no_runtime", name + " is not ONNX Runtime", "start the runner with --ort PATH"};
  const OrtApiBase* base = reinterpret_cast<const OrtApiBase* (*)()>(symbol)();
  std::shared_ptr<Runtime> runtime(new Runtime());
  runtime->version_ = base->GetVersionString();
  const OrtApi* api = nullptr;
  for (int version = kNewestApi; api == nullptr && version >= kOldestApi; --version) {
    api = base->GetApi(static_cast<std::uint32_t>(version));
    runtime->api_ = version;
  }
  if (api == nullptr) {
    return Error{"no_runtime", "ONNX Runtime " + runtime->version_ + " is older than this runner needs",
                 "use ONNX Runtime 1.22 or newer"};
  }
  Ort::InitApi(api);
  try {
    runtime->environment_ = std::make_shared<Environment>(std::move(heard));
  } catch (const Ort::Exception& problem) {
    return runtime_error("no_runtime", "ONNX Runtime does not start", problem, "use another release");
  }
  runtime->paths_ = paths;
  return runtime;
}

std::vector<std::string> Runtime::providers() const {
  std::vector<std::string> names{"cpu"};
  if (!paths_.qnn.empty() && access(paths_.qnn.c_str(), R_OK) == 0) names.emplace_back("htp");
  return names;
}

Result<std::unique_ptr<Model>> Runtime::load(const LoadRequest& request) {
  if (request.provider != "cpu" && request.provider != "htp") {
    return Error{"bad_field", "`provider` must be `cpu` or `htp`", "see PROTOCOL.md"};
  }
  Result<ModelFiles> files =
      read_model(request.bundle, request.role, request.provider == "cpu" ? "cpu" : kHtpGraphs,
                 {request.soc, request.precision});
  if (!files) return files.error();
  try {
    return GraphLoader(*this, request, std::move(*files)).load();
  } catch (const Ort::Exception& problem) {
    return runtime_error("load_failed", "ONNX Runtime " + version_ + " cannot load the " + request.role, problem,
                         "export the bundle again, or use the release it was made for");
  }
}

}  // namespace hexgraft
