#include "engine/gpu/target.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accord/nccl.hpp"
#include "base/rounding.hpp"
#include "base/text.hpp"
#include "device/memory.hpp"
#include "engine/gpu/kernels/product_kernel.hpp"
#include "engine/gpu/parameters.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/run_memory.hpp"
#include "engine/gpu/steps.hpp"
#include "engine/host/steps.hpp"

namespace accord::engine {

Result<EngineDevice> find_engine_device(Device device) {
  EngineDevice on;
  on.device = device;
  ACCORD_ASSIGN_OR_RETURN(on.runtime, device::runtime_of(device.type));
  const int count = on.runtime->count();
  if (device.index < 0 || device.index >= count) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} does not exist: {} devices were found", to_string(device), count));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::size_t shared_bytes, on.runtime->max_shared_bytes(device));
  if (shared_bytes < kMaxSharedBytes)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} has {} of shared memory for each thread block; kernels of engines need {} (GPUs of "
                              "compute capability 9.0 and 10.x have it)",
                              to_string(device), bytes_text(shared_bytes), bytes_text(kMaxSharedBytes)));
  ACCORD_ASSIGN_OR_RETURN(on.blas, device::blas_of(device.type));
  return on;
}

namespace gpu {
namespace {

class Gpu final : public Target {
 public:
  explicit Gpu(const EngineDevice& on) : on_(on) {}

  Device device() const override { return on_.device; }
  Status check_groups(const std::map<std::string, GroupPlace>& places) const override {
    const auto has_peers = [&](const char* name) {
      const auto place = places.find(name);
      return place != places.end() && place->second.size > 1;
    };
    for (const char* const group : {kBatchGroup, kContextGroup}) {
      if (!has_peers(group)) continue;
      return Status(StatusCode::kUnsupported,
                    fmt::format("group \"{}\" is for engines on the CPU, not on {}", group, to_string(on_.device)));
    }
    if (!has_peers(kStageGroup)) return Status();
    return nccl_version().status().with_context(
        fmt::format("group \"{}\": stages on GPUs send values to each other by NCCL", kStageGroup));
  }
  Result<std::unique_ptr<RunMemory>> create_run_memory(int) const override { return Memory::create(on_); }

  std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                              const WeightOptions& options) const override {
    return gpu::planned_bytes(package, graph, parts, options.keeps_float8);
  }
  Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                     const WeightOptions& options) const override {
    return gpu::load_parameters(on_, package, graph, parts, options.keeps_float8);
  }
  Result<Parameters> reference_parameters(const Graph& graph,
                                          const std::map<std::string, TensorView>& weights) const override {
    return gpu::reference_parameters(on_, graph, weights);
  }
  bool refuses_excess_memory() const override { return true; }

  const StepTable& steps() const override { return gpu::steps(); }
  const StepTable& constant_steps() const override { return host::steps(); }
  Status run_constant_steps(std::span<const Step> steps, std::span<std::byte* const> bases) const override {
    return host::run_constant_steps(steps, bases);
  }
  // Products of few rows read several weights in one launch wherever they are.
  bool multiplies_together(std::int64_t rows) const override { return rows > kFewRows; }
  // A captured graph finds inputs in the arena again.
  bool reads_inputs_in_place() const override { return false; }
  Result<std::shared_ptr<const void>> place_constants(std::span<Constant> constants) const override;

 private:
  const EngineDevice on_;
};

Result<std::shared_ptr<const void>> Gpu::place_constants(std::span<Constant> constants) const {
  constexpr std::size_t kConstantAlignment = 256;
  std::size_t bytes = 0;
  for (const Constant& constant : constants) bytes += round_up(constant.bytes.size(), kConstantAlignment);
  ACCORD_ASSIGN_OR_RETURN(device::Memory memory,
                          device::Memory::allocate(*on_.runtime, on_.device, bytes, "constants of a program"));
  std::vector<std::byte> all(bytes);
  std::size_t at = 0;
  for (Constant& constant : constants) {
    std::copy(constant.bytes.begin(), constant.bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
    constant.address = memory.data() + at;
    at += round_up(constant.bytes.size(), kConstantAlignment);
  }
  if (bytes > 0) {
    ACCORD_RETURN_IF_ERROR(on_.runtime->copy(memory.data(), all.data(), bytes, on_.device, {}));
    ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, {}));
  }
  return std::shared_ptr<const void>(std::make_shared<device::Memory>(std::move(memory)));
}

}  // namespace

Result<std::shared_ptr<const Target>> create_target(const LoadOptions& options) {
  if (options.canonical_ranks != 0 && options.activation_dtype) {
    return Status(
        StatusCode::kUnsupported,
        "activation_dtype cannot be combined with canonical_ranks on GPUs: each rank rounds its own part of a row");
  }
  if (options.canonical_ranks != 0 && options.overlap_rows != 0) {
    return Status(StatusCode::kUnsupported,
                  "overlap_rows cannot be combined with canonical_ranks on GPUs: it computes fewer rows at once, which "
                  "changes bits");
  }
  ACCORD_ASSIGN_OR_RETURN(const EngineDevice on, find_engine_device(options.device));
  return std::shared_ptr<const Target>(std::make_shared<Gpu>(on));
}

}  // namespace gpu
}  // namespace accord::engine
