// Replaces the weights of a loaded engine. New weights are read beside the old ones, the ranks agree on the outcome,
// and then one pointer changes. Contexts hold the weights that their programs were prepared with, and release both
// when they see that the version has changed.
#include <fmt/format.h>

#include <utility>

#include "engine/package/package.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {
namespace {

/// Weights that count against the engine's limit as long as anything holds them.
struct BudgetedParameters {
  BudgetedParameters(std::shared_ptr<MemoryBudget> limit, MemoryPart taken)
      : budget(std::move(limit)), part(std::move(taken)) {}
  ~BudgetedParameters() { budget->release(part); }
  BudgetedParameters(const BudgetedParameters&) = delete;
  BudgetedParameters& operator=(const BudgetedParameters&) = delete;

  std::shared_ptr<MemoryBudget> budget;
  MemoryPart part;
  Parameters parameters;
};

}  // namespace

LoadedEngine::Weights LoadedEngine::newest_weights() const {
  const std::lock_guard lock(weights_mutex_);
  return {parameters_, weights_version_.load(std::memory_order_relaxed)};
}

Result<std::shared_ptr<const Parameters>> LoadedEngine::read_parameters(Package& package,
                                                                        const std::vector<TensorPart>& parts) const {
  const WeightOptions options{.threads = threads_, .keeps_float8 = canonical_ranks_ == 0};
  const MemoryPart weights{"weights", target_->planned_bytes(package, graph_, parts, options)};
  if (!target_->refuses_excess_memory() || budget_->limit() != 0)
    ACCORD_RETURN_IF_ERROR(budget_->check(std::span(&weights, 1)));
  ACCORD_RETURN_IF_ERROR(budget_->reserve(weights));
  const auto held = std::make_shared<BudgetedParameters>(budget_, weights);
  ACCORD_ASSIGN_OR_RETURN(held->parameters, target_->load_parameters(package, graph_, parts, options));
  return std::shared_ptr<const Parameters>(held, &held->parameters);
}

Status LoadedEngine::check_same_model(const Package& package) const {
  const auto other = [&](const std::string& what) {
    return Status(StatusCode::kMismatch,
                  fmt::format("\"{}\" belongs to a different model than \"{}\": {}", package.path(), path_, what));
  };
  for (const TensorDescription& entry : tensors_) {
    const Result<const TensorEntry*> found = package.tensor(entry.name);
    if (!found.ok()) return other(fmt::format("it has no tensor \"{}\"", entry.name));
    const TensorEntry& there = **found;
    if (there.dtype != entry.dtype || there.shape != entry.shape || there.sharding != entry.sharding) {
      return other(fmt::format("tensor \"{}\" has a different dtype, shape or sharding", entry.name));
    }
  }
  if (package.manifest().graph_sha256 != graph_sha256_) return other("their graphs differ");
  return Status();
}

Status LoadedEngine::load_weights(const std::string& path) {
  const std::lock_guard one_at_a_time(loading_);
  std::string digest;
  const auto read = [&]() -> Result<std::shared_ptr<const Parameters>> {
    ACCORD_ASSIGN_OR_RETURN(Package package, Package::open(path));
    ACCORD_RETURN_IF_ERROR(check_same_model(package));
    ACCORD_ASSIGN_OR_RETURN(const CutPackage cut, cut_package(package, groups_, canonical_ranks_));
    digest = package.manifest().sha256;
    return read_parameters(package, cut.part.parts);
  };
  Result<std::shared_ptr<const Parameters>> parameters = read();
  ACCORD_RETURN_IF_ERROR(agree(peers(), {parameters.status(), digest}));
  ACCORD_RETURN_IF_ERROR(parameters.status());
  const std::lock_guard lock(weights_mutex_);
  parameters_ = *std::move(parameters);
  weights_version_.fetch_add(1, std::memory_order_release);
  return Status();
}

}  // namespace accord::engine
