#pragma once
// The object behind an Engine handle: one rank's model, weights, groups and memory.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/program/program.hpp"
#include "engine/program/target.hpp"
#include "engine/runtime/batch_split.hpp"
#include "engine/runtime/bound_groups.hpp"
#include "engine/runtime/engine_weights.hpp"
#include "engine/runtime/load_settings.hpp"
#include "engine/runtime/loaded_model.hpp"
#include "engine/runtime/memory_budget.hpp"

namespace accord::engine {

/// One rank's part of a package: cut for its groups, and for its stage if there are several. The passes have not run
/// yet.
struct CutPackage {
  Partition part;
  std::vector<std::string> groups;      ///< the package's, and those over which any package can be loaded
  std::optional<BatchSplit> batch;      ///< if replicas share a batch
  std::optional<ContextShare> context;  ///< if kContextGroup is given
};
/// `canonical_ranks`: as in LoadOptions.
Result<CutPackage> cut_package(const Package& package, const std::map<std::string, GroupPlace>& places,
                               int canonical_ranks);

/// Thread-safe. Everything but the weights and the communicators stays as load() made it.
class LoadedEngine {
 public:
  static Result<std::shared_ptr<LoadedEngine>> load(const std::string& path,
                                                    const std::map<std::string, GroupPlace>& places,
                                                    const LoadOptions& options);
  /// Checks that load() accepts the package on the CPU. Does everything that load() does except reading weights, so
  /// damaged weights are not noticed. Cost: reading the metadata, whatever the size of the weights.
  static Status check_loads(const std::string& path, const std::map<std::string, GroupPlace>& places);
  static Result<std::shared_ptr<LoadedEngine>> assemble(const EngineParts& parts,
                                                        const std::map<std::string, GroupPlace>& places,
                                                        const LoadOptions& options);
  static Result<std::shared_ptr<LoadedEngine>> load_and_bind(const std::string& path,
                                                             const std::map<std::string, Communicator>& communicators,
                                                             const LoadOptions& options);

  /// Implements Engine::bind(), Engine::unbind() and Engine::close().
  Status bind(const std::map<std::string, Communicator>& communicators);
  Status unbind();
  void close();
  BoundGroups& groups() { return groups_; }
  const BoundGroups& groups() const { return groups_; }

  const LoadedModel& model() const { return model_; }
  const Graph& graph() const { return model_.graph; }
  const LoadSettings& settings() const { return settings_; }
  const LoadReport& report() const { return report_; }
  const Target& target() const { return *target_; }
  Device device() const { return target_->device(); }
  /// Fails with kUnsupported for an assembled engine.
  Result<Package> open_package() const;
  /// The encoder of a language model: an engine for the same ranks, over the weights of the same package. It is bound
  /// and unbound, closed and given new weights together with this engine. Null if there is none.
  const std::shared_ptr<LoadedEngine>& encoder() const { return encoder_; }

  /// Implements Engine::load_weights().
  Status load_weights(const std::string& path);
  const EngineWeights& weights() const { return weights_; }

  /// Prepares a program for these symbols, with the newest weights or with `parameters`, which must outlive the
  /// program. Errors as from prepare_program.
  Result<Program> prepare(const SymbolValues& symbols, const Parameters& parameters,
                          ProgramNotes* notes = nullptr) const;
  Result<Program> prepare(const SymbolValues& symbols, ProgramNotes* notes = nullptr) const;

  /// The memory that the engine and its contexts may use.
  MemoryBudget& budget() const { return *budget_; }
  /// Bytes of the engine's limit that every context reserves when it is created, so that no run lacks them: the arena
  /// at the largest sizes. 0 without a limit, and for a language model, whose use decides the size of the arena.
  std::size_t reserved_arena_bytes() const {
    return budget_->limit() == 0 || model_.language_model ? 0 : largest_arena_bytes_;
  }

 private:
  LoadedEngine() = default;
  struct OpenedPackage {
    Package package;
    CutPackage cut;  ///< its graph has been moved to model_
  };
  Result<OpenedPackage> open_and_cut(const std::string& path, const std::map<std::string, GroupPlace>& places,
                                     const LoadOptions& options);
  static Result<std::shared_ptr<LoadedEngine>> load_graph(const std::string& path,
                                                          const std::map<std::string, GroupPlace>& places,
                                                          const LoadOptions& options, PackageGraph graph);
  Status bind_agreed(const std::map<std::string, Communicator>& communicators);
  Status set_options(const LoadOptions& options);
  Result<std::shared_ptr<const Parameters>> read_parameters(Package& package,
                                                            const std::vector<TensorPart>& parts) const;
  Status check_same_model(const Package& package) const;
  Status dry_run();
  Status check_arena() const;
  Result<std::size_t> try_program(const SymbolValues& symbols) const;
  Status check_groups() const;

  PackageGraph package_graph_ = PackageGraph::kModel;
  std::shared_ptr<LoadedEngine> encoder_;
  LoadedModel model_;
  LoadSettings settings_;
  std::shared_ptr<const Target> target_;
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>();
  std::size_t largest_arena_bytes_ = 0;  // at the largest sizes of all symbols; if assembled, at EngineParts::sizes
  EngineWeights weights_;
  BoundGroups groups_;
  std::string digest_;  // must be equal on all ranks
  LoadReport report_;
};

}  // namespace accord::engine
