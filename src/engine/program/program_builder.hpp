#pragma once
// The state behind prepare_program: which storage holds each value, and how long each storage is needed.

#include <optional>
#include <utility>
#include <vector>

#include "engine/program/memory_plan.hpp"
#include "engine/program/program.hpp"

namespace accord::engine {

class Preparation;

/// Builds a program node by node. Most methods serve Preparation, which ops use.
class ProgramBuilder {
 public:
  ProgramBuilder(const ProgramSource& source, const SymbolValues& symbols);

  Result<Program> build() &&;

  const ProgramSource& source() const { return source_; }
  const SymbolValues& symbols() const { return symbols_; }

  const Tensor& tensor(ValueId value) const { return *tensors_[static_cast<std::size_t>(value)]; }
  bool is_set(ValueId value) const { return tensors_[static_cast<std::size_t>(value)].has_value(); }
  bool is_used(ValueId value) const { return last_use_[static_cast<std::size_t>(value)] >= 0; }
  void set(ValueId value, Tensor tensor);
  Result<Sizes> evaluate(const SymbolicShape& shape) const;
  /// Returns this rank's memory of a weight; nullptr if the value is not a weight.
  const ParameterMemory* parameter(ValueId value) const;

  /// Returns whether the tensor is a weight of which other ranks have other parts.
  bool is_sharded(const Tensor& tensor) const { return storage_of(tensor).is_sharded; }

  /// Creates a storage for the current node. Fails with kResourceExhausted for invalid sizes.
  Result<Tensor> make(DType dtype, const Sizes& sizes, std::optional<kernels::Layout> layout = {});
  /// Creates a storage that holds `bytes` now, even while steps are only being prepared.
  Tensor make_constant(DType dtype, const Sizes& sizes, std::span<const std::byte> bytes);
  /// Returns the bytes of a small weight or constant, which exist even while steps are only being prepared; nullptr
  /// for other tensors.
  const std::byte* known_bytes(const Tensor& tensor) const;
  /// Returns whether nothing needs the arena storage of `tensor` after the current node.
  bool is_last_use(const Tensor& tensor) const;
  void add_step(Step run) { pending_.push_back(std::move(run)); }
  std::vector<Step> exchange_steps(std::vector<Step> steps) { return std::exchange(pending_, std::move(steps)); }
  void forbid_folding() { may_fold_ = false; }
  /// Returns false if another node has set a different number.
  bool set_batch_rows(std::int64_t rows) {
    return program_.batch_rows.emplace(program_.batch_rows.value_or(rows)) == rows;
  }

 private:
  struct Storage {
    StorageKind kind = StorageKind::kArena;
    std::size_t bytes = 0;
    std::byte* base = nullptr;
    int created_at = 0;
    int last_use = -1;        // of the values stored in it
    bool is_known = false;    // a weight whose elements the CPU can read
    bool is_sharded = false;  // a weight of which other ranks have other parts
  };
  /// Sizes of everything that preparing a node adds to.
  struct Checkpoint {
    std::size_t storages = 0, constants = 0, made_bytes = 0;
  };

  Status add_inputs_and_parameters();
  Status prepare_node(const Node& node);
  Status prepare_node(const Node& node, const StepTable& steps);
  Result<bool> prepare_constant_node(const Node& node);
  void note_kind(ProgramNotes::Kind kind);
  void return_to(const Checkpoint& before, const Node& node);
  Status fold();
  Status check_outputs(const Node& node) const;
  Status add_output(ValueId output);
  StorageId add_storage(Storage storage);
  const Storage& storage_of(const Tensor& tensor) const { return storages_[static_cast<std::size_t>(tensor.storage)]; }
  bool is_constant(StorageId storage) const;
  bool is_worth_folding(const Node& node);
  void plan_arena();
  Status place_constants();
  void note_arena(std::span<const Lifetime> lifetimes) const;

  // In bytes. Recomputing a larger constant is as fast as reading it.
  static constexpr std::size_t kFoldLimit = std::size_t{64} << 10;
  // Limits on the elements read and bytes made by folding, for one node and for all nodes, so that folding does not
  // make loading slow.
  static constexpr std::int64_t kMaxFoldWork = std::int64_t{1} << 19;
  static constexpr std::int64_t kMaxTotalFoldWork = std::int64_t{1} << 24;
  static constexpr int kAlways = 1 << 30;  // last use of the caller's outputs

  const ProgramSource& source_;
  const SymbolValues& symbols_;
  Program program_;
  std::vector<Storage> storages_;
  std::vector<std::optional<Tensor>> tensors_;  // indexed by ValueId
  std::vector<int> last_use_;                   // by ValueId: index of the last node that reads it, -1 if none
  std::vector<int> parameter_of_;               // by ValueId: its position in Graph::parameters, -1 if none
  int node_index_ = 0;
  std::vector<Step> pending_;  // steps of the current node
  std::vector<StorageId> pending_storages_;
  bool may_fold_ = true;
  std::int64_t fold_work_ = 0;
  std::size_t created_bytes_ = 0;  // of all storages
};

}  // namespace accord::engine
