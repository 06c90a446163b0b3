// Replaces the weights of a loaded engine. New weights are read beside the old ones, the ranks agree on the outcome,
// and then one pointer changes. Contexts hold the weights that their programs were prepared with, and release both
// when they see that the version has changed.
#include "engine/runtime/engine_weights.hpp"

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

EngineWeights::Version EngineWeights::newest() const {
  const std::lock_guard lock(mutex_);
  return {parameters_, number_.load(std::memory_order_relaxed)};
}

void EngineWeights::replace(std::shared_ptr<const Parameters> parameters) {
  const std::lock_guard lock(mutex_);
  parameters_ = std::move(parameters);
  number_.fetch_add(1, std::memory_order_release);
}

Result<std::shared_ptr<const Parameters>> LoadedEngine::read_parameters(Package& package,
                                                                        const std::vector<TensorPart>& parts) const {
  const WeightOptions options{.threads = settings_.threads, .keeps_float8 = settings_.canonical_ranks == 0};
  const MemoryPart weights{"weights", target_->planned_bytes(package, model_.graph, parts, options)};
  if (!target_->refuses_excess_memory() || budget_->limit() != 0)
    ACCORD_RETURN_IF_ERROR(budget_->check(std::span(&weights, 1)));
  ACCORD_RETURN_IF_ERROR(budget_->reserve(weights));
  const auto held = std::make_shared<BudgetedParameters>(budget_, weights);
  ACCORD_ASSIGN_OR_RETURN(held->parameters, target_->load_parameters(package, model_.graph, parts, options));
  return std::shared_ptr<const Parameters>(held, &held->parameters);
}

Status LoadedEngine::check_same_model(const Package& package) const {
  const auto other = [&](const std::string& what) {
    return Status(StatusCode::kMismatch, fmt::format("\"{}\" belongs to a different model than \"{}\": {}",
                                                     package.path(), model_.path, what));
  };
  for (const LoadedModel::TensorDescription& entry : model_.tensors) {
    const Result<const TensorEntry*> found = package.tensor(entry.name);
    if (!found.ok()) return other(fmt::format("it has no tensor \"{}\"", entry.name));
    const TensorEntry& there = **found;
    if (there.dtype != entry.dtype || there.shape != entry.shape || there.sharding != entry.sharding) {
      return other(fmt::format("tensor \"{}\" has a different dtype, shape or sharding", entry.name));
    }
  }
  if (package.manifest().graph_sha256 != model_.graph_sha256) return other("their graphs differ");
  return Status();
}

Status LoadedEngine::load_weights(const std::string& path) {
  if (encoder_) ACCORD_RETURN_IF_ERROR(encoder_->load_weights(path));
  const std::lock_guard one_at_a_time(weights_.loading());
  std::string digest;
  const auto read = [&]() -> Result<std::shared_ptr<const Parameters>> {
    ACCORD_ASSIGN_OR_RETURN(Package package, Package::open(path, package_graph_));
    ACCORD_RETURN_IF_ERROR(check_same_model(package));
    ACCORD_ASSIGN_OR_RETURN(const CutPackage cut, cut_package(package, groups_.places(), settings_.canonical_ranks));
    digest = package.manifest().sha256;
    return read_parameters(package, cut.part.parts);
  };
  Result<std::shared_ptr<const Parameters>> parameters = read();
  ACCORD_RETURN_IF_ERROR(agree(groups_.peers(), {parameters.status(), digest}));
  ACCORD_RETURN_IF_ERROR(parameters.status());
  weights_.replace(*std::move(parameters));
  return Status();
}

}  // namespace accord::engine
