// Collects the facts from their sources: the compiler's definitions (set for this layer by src/CMakeLists.txt), the
// kernels, the topology, the transports, the configuration table, and the libraries that are loaded at run time. A
// caller may query any name in any build: a part that the build lacks is unavailable, with its reason.
#include "accord/info.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>

#include "accord/nccl.hpp"
#include "base/config.hpp"
#include "base/text.hpp"
#include "device/blas.hpp"
#include "device/runtime.hpp"
#include "kernels/instruction_set.hpp"
#include "topology/topology.hpp"
#include "transport/transport.hpp"

namespace accord {
namespace {

std::string compiler() {
#if defined(__clang__)
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GNU {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::vector<PartInfo> find_transports() {
  std::vector<PartInfo> found;
  for (const transport::Transport* transport : transport::transports()) {
    const Status viable = transport->viable();
    found.push_back({std::string(transport->name()), viable.ok(), viable.ok() ? "ready" : viable.message()});
  }
  const auto is_ucx = [](const PartInfo& part) { return part.name == "ucx"; };
  if (std::none_of(found.begin(), found.end(), is_ucx))
    found.push_back({"ucx", false, fmt::format("built with ACCORD_UCX={}, without UCX's headers", ACCORD_UCX_OPTION)});
  return found;
}

PartInfo cuda_part() {
  constexpr std::string_view kVersion = ACCORD_CUDA_VERSION;
  if (kVersion.empty()) {
    return {"cuda", false, fmt::format("built with ACCORD_CUDA={}: {}", ACCORD_CUDA_OPTION, ACCORD_CUDA_WITHOUT)};
  }
  const std::string built = fmt::format("built with CUDA {}", kVersion);
  const Result<device::Runtime*> runtime = device::runtime_of(DeviceType::kCuda);
  if (!runtime.ok()) return {"cuda", false, fmt::format("{}; {}", built, runtime.status().message())};
  const int count = (*runtime)->count();
  std::vector<std::string> devices;
  for (int index = 0; index < count; ++index) {
    const Result<std::string> found = (*runtime)->describe({DeviceType::kCuda, static_cast<std::int16_t>(index)});
    devices.push_back(found.ok() ? *found : found.status().message());
  }
  return {"cuda", true,
          fmt::format("{}; {} device{}: {}", built, count, count == 1 ? "" : "s", fmt::join(devices, "; "))};
}

PartInfo cublaslt_part() {
  const Result<device::Blas*> blas = device::blas_of(DeviceType::kCuda);
  return {"cublaslt", blas.ok(), blas.ok() ? (*blas)->describe() : blas.status().message()};
}

PartInfo nccl_part() {
  const Result<std::string> found = nccl_version();
  return {"nccl", found.ok(), found.ok() ? *found : found.status().message()};
}

PartInfo hwloc_part() {
  constexpr std::string_view kVersion = ACCORD_HWLOC_VERSION;
  if (!kVersion.empty()) return {"hwloc", true, std::string(kVersion)};
  return {"hwloc", false,
          fmt::format("built with ACCORD_HWLOC={}: topology comes from sched_getaffinity", ACCORD_HWLOC_OPTION)};
}

PartInfo onednn_part() {
  const dnnl_version_t* version = dnnl_version();
  return {"onednn", true, fmt::format("{}.{}.{}", version->major, version->minor, version->patch)};
}

/// By name, so that a query for one part does not load the libraries of the others.
struct Part {
  std::string_view name;
  PartInfo (*find)();
};
constexpr std::array kParts = {Part{"cuda", cuda_part}, Part{"cublaslt", cublaslt_part}, Part{"nccl", nccl_part},
                               Part{"hwloc", hwloc_part}, Part{"onednn", onednn_part}};

std::vector<PartInfo> find_parts() {
  std::vector<PartInfo> found;
  found.reserve(kParts.size());
  for (const Part& part : kParts) found.push_back(part.find());
  return found;
}

std::vector<VariableInfo> variables() {
  std::vector<VariableInfo> found;
  for (const ConfigEntry& entry : config_entries()) {
    const std::string name(entry.variable);
    const char* value = std::getenv(name.c_str());
    found.push_back({name, value != nullptr ? value : std::string(entry.default_value), value != nullptr,
                     std::string(entry.default_value), std::string(entry.meaning)});
  }
  return found;
}

nlohmann::ordered_json parts_json(const std::vector<PartInfo>& parts) {
  auto list = nlohmann::ordered_json::array();
  for (const PartInfo& part : parts) {
    list.push_back({{"name", part.name}, {"available", part.available}, {"detail", part.detail}});
  }
  return list;
}

}  // namespace

std::string_view version() { return ACCORD_VERSION; }

Info info() {
  Info found;
  found.version = ACCORD_VERSION;
  found.build_type = ACCORD_BUILD_TYPE;
  found.compiler = compiler();
  found.sanitizers = ACCORD_SANITIZERS;
  found.instruction_set = kernels::instruction_set();
  if (const Result<topology::Place> place = topology::this_place(); place.ok()) {
    found.cpus = static_cast<int>(place->cpus.size());
    found.cores = place->cores;
    found.numa_nodes = static_cast<int>(place->numa_nodes.size());
  }
  found.transports = find_transports();
  found.parts = find_parts();
  found.variables = variables();
  found.configuration = config().status();
  return found;
}

Status check_feature(std::string_view name) {
  const auto status_of = [](const PartInfo& part) {
    return part.available ? Status() : Status(StatusCode::kUnsupported, fmt::format("{}: {}", part.name, part.detail));
  };
  const std::vector<PartInfo> transports = find_transports();
  std::vector<std::string_view> names;
  for (const PartInfo& transport : transports) {
    if (transport.name == name) return status_of(transport);
    names.push_back(transport.name);
  }
  for (const Part& part : kParts) {
    if (part.name == name) return status_of(part.find());
    names.push_back(part.name);
  }
  return unknown_name("feature", name, names);
}

std::string to_json(const Info& info) {
  auto variables = nlohmann::ordered_json::array();
  for (const VariableInfo& variable : info.variables) {
    variables.push_back({{"name", variable.name},
                         {"value", variable.value},
                         {"is_set", variable.is_set},
                         {"default", variable.default_value},
                         {"meaning", variable.meaning}});
  }
  const nlohmann::ordered_json json = {{"version", info.version},
                                       {"build_type", info.build_type},
                                       {"compiler", info.compiler},
                                       {"sanitizers", info.sanitizers},
                                       {"instruction_set", info.instruction_set},
                                       {"cpus", info.cpus},
                                       {"cores", info.cores},
                                       {"numa_nodes", info.numa_nodes},
                                       {"transports", parts_json(info.transports)},
                                       {"parts", parts_json(info.parts)},
                                       {"variables", std::move(variables)},
                                       {"configuration_error", info.configuration.message()}};
  // Text from the environment may not be valid UTF-8; it is shown with replacement characters.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace accord
