#pragma once
// The object behind an Engine handle: one rank's graph and weights, its state, and its communicators.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/program/parameters.hpp"
#include "engine/program/program.hpp"
#include "engine/program/target.hpp"
#include "engine/runtime/batch_split.hpp"
#include "engine/runtime/memory_budget.hpp"
#include "engine/runtime/states.hpp"

namespace accord::engine {

/// One rank's part of a package: cut for its groups, and for its stage if there are several. The passes have not run
/// yet.
struct CutPackage {
  Partition part;
  std::vector<std::string> groups;  ///< the package's, and those over which any package can be loaded
  std::optional<BatchSplit> batch;  ///< if replicas share a batch
};
/// `canonical_ranks`: as in LoadOptions.
Result<CutPackage> cut_package(const Package& package, const std::map<std::string, GroupPlace>& places,
                               int canonical_ranks);

/// Thread-safe. The graph and the report never change after load(); the communicators do not change during a run.
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

  Status bind(const std::map<std::string, Communicator>& communicators);
  Status unbind();
  EngineState state() const;
  void close();

  /// The path of the package; for an assembled engine, the name of its parts.
  const std::string& path() const { return path_; }
  /// Fails with kUnsupported for an assembled engine.
  Result<Package> open_package() const;
  const LoadReport& report() const { return report_; }
  const std::vector<TensorInfo>& inputs() const { return inputs_; }
  const std::vector<TensorInfo>& outputs() const { return outputs_; }
  const std::map<std::string, GroupPlace>& groups() const { return groups_; }
  const Graph& graph() const { return graph_; }
  /// nullopt if the package is not a language model.
  const std::optional<LanguageModelEntry>& language_model() const { return language_model_; }
  /// The tokenizer and the chat format; nullopt if the package has none.
  const std::optional<std::string>& tokenizer_json() const { return tokenizer_json_; }
  const std::optional<std::string>& chat_format_json() const { return chat_format_json_; }
  int threads() const { return threads_; }
  const Target& target() const { return *target_; }
  Device device() const { return target_->device(); }
  /// Returns true if outputs on a GPU are copied to the CPU.
  bool copies_outputs() const { return copies_outputs_; }
  int canonical_ranks() const { return canonical_ranks_; }
  /// nullopt unless kBatchGroup has several ranks.
  const std::optional<BatchSplit>& batch_split() const { return batch_split_; }
  /// Whether ranks run other layers, or other rows, than their peers.
  bool divides_runs() const;
  /// REQUIRES: batch_split(), and the engine is Running.
  Communicator batch_communicator() const;

  /// Implements Engine::load_weights().
  Status load_weights(const std::string& path);
  /// How often the weights have been replaced.
  std::uint64_t weights_version() const { return weights_version_.load(std::memory_order_acquire); }
  struct Weights {
    std::shared_ptr<const Parameters> parameters;
    std::uint64_t version = 0;
  };
  Weights newest_weights() const;

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
    return budget_->limit() == 0 || language_model_ ? 0 : largest_arena_bytes_;
  }

  /// The communicators that are bound to groups of several ranks.
  std::map<std::string, Communicator> peers() const;

  /// How often communicators have been bound.
  std::uint64_t bindings() const { return bindings_.load(std::memory_order_acquire); }
  /// Between these two calls the engine is Running and `communicators` may be used.
  Status begin_run();
  void end_run();
  std::span<const std::optional<Communicator>> communicators() const { return communicators_; }
  /// The communicator of a group; nullopt if the group has one rank.
  std::optional<Communicator> communicator(const std::string& group) const {
    const auto found = group_index_.find(group);
    return found == group_index_.end() ? std::nullopt : communicators_[static_cast<std::size_t>(found->second)];
  }

 private:
  LoadedEngine() = default;
  struct OpenedPackage {
    Package package;
    CutPackage cut;  ///< its graph has been moved to graph_
  };
  Result<OpenedPackage> open_and_cut(const std::string& path, const std::map<std::string, GroupPlace>& places,
                                     const LoadOptions& options);
  Status set_options(const LoadOptions& options);
  std::string arithmetic_text() const;
  void set_groups(const std::vector<std::string>& names, const std::map<std::string, GroupPlace>& places);
  Result<std::shared_ptr<const Parameters>> read_parameters(Package& package,
                                                            const std::vector<TensorPart>& parts) const;
  Status check_same_model(const Package& package) const;
  Status dry_run();
  Status check_arena() const;
  Result<std::size_t> try_program(const SymbolValues& symbols) const;
  Status check_groups() const;
  Status check_communicators(const std::map<std::string, Communicator>& communicators) const;
  Status check_bindable() const;
  Result<Communicator> communicator_for(const Communicator& given) const;
  Status finish_bind(const std::map<std::string, Communicator>& communicators);

  std::string path_;
  bool assembled_ = false;
  Graph graph_;
  std::optional<LanguageModelEntry> language_model_;
  std::optional<std::string> tokenizer_json_;
  std::optional<std::string> chat_format_json_;
  std::optional<BatchSplit> batch_split_;
  std::string graph_sha256_;
  struct TensorDescription {
    std::string name;
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
    std::optional<Sharding> sharding;
  };
  std::vector<TensorDescription> tensors_;  // the package's, to be compared with another package's
  LoadReport report_;
  std::vector<TensorInfo> inputs_;
  std::vector<TensorInfo> outputs_;
  std::map<std::string, GroupPlace> groups_;
  std::map<std::string, int> group_index_;  // groups of more than one rank -> communicators_
  std::string digest_;                      // must be equal on all ranks
  int threads_ = 1;
  std::shared_ptr<const Target> target_;
  bool copies_outputs_ = false;
  int canonical_ranks_ = 0;
  std::int64_t overlap_rows_ = 0;
  std::optional<DType> all_reduce_dtype_;
  std::optional<DType> activation_dtype_;
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>();
  std::size_t largest_arena_bytes_ = 0;  // at the largest sizes of all symbols; if assembled, at EngineParts::sizes

  mutable std::mutex weights_mutex_;
  std::shared_ptr<const Parameters> parameters_;  // guarded by weights_mutex_
  std::atomic<std::uint64_t> weights_version_{0};
  std::mutex loading_;  // held by load_weights()

  mutable std::mutex mutex_;
  StateMachine state_;                                      // guarded by mutex_
  std::vector<std::optional<Communicator>> communicators_;  // written under mutex_, while nothing runs
  std::atomic<std::uint64_t> bindings_{0};
};

}  // namespace accord::engine
