#include "engine/host/target.hpp"

#include "engine/host/memory.hpp"
#include "engine/host/parameters.hpp"
#include "engine/host/steps.hpp"

namespace accord::engine::host {
namespace {

class Cpu final : public Target {
 public:
  Device device() const override { return {}; }
  Status check_groups(const std::map<std::string, GroupPlace>&) const override { return Status(); }
  Result<std::unique_ptr<RunMemory>> create_run_memory(int threads) const override {
    return std::unique_ptr<RunMemory>(std::make_unique<Memory>(threads));
  }

  std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                              const WeightOptions&) const override {
    return host::planned_bytes(package, graph, parts);
  }
  Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                     const WeightOptions& options) const override {
    return host::load_parameters(package, graph, parts, options.threads, options.contents);
  }
  Result<Parameters> reference_parameters(const Graph& graph,
                                          const std::map<std::string, TensorView>& weights) const override {
    return host::reference_parameters(graph, weights);
  }
  bool refuses_excess_memory() const override { return false; }

  const StepTable& steps() const override { return host::steps(); }
  const StepTable& constant_steps() const override { return host::steps(); }
  Status run_constant_steps(std::span<const Step> steps, std::span<std::byte* const> bases) const override {
    return host::run_constant_steps(steps, bases);
  }
  bool multiplies_together(std::int64_t) const override { return false; }
  bool reads_inputs_in_place() const override { return true; }
  Result<std::shared_ptr<const void>> place_constants(std::span<Constant>) const override {
    return std::shared_ptr<const void>();
  }
};

}  // namespace

Status run_constant_steps(std::span<const Step> steps, std::span<std::byte* const> bases) {
  ThreadPool alone(1);
  const Run run(alone);
  Execution execution{.bases = bases};
  execution.target = &run;
  for (const Step& step : steps) ACCORD_RETURN_IF_ERROR(step(execution));
  return Status();
}

const Target& target() {
  static const Cpu cpu;
  return cpu;
}

}  // namespace accord::engine::host
