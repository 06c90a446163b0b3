#pragma once
// The state behind prepare_program: which storage each value lies in, and how long each is needed.

#include <optional>
#include <vector>

#include "engine/runtime/memory_plan.hpp"
#include "engine/runtime/program.hpp"

namespace accord::engine {

class Preparation;

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
  /// This rank's memory of a weight; nullptr if the value is none.
  const ParameterMemory* parameter(ValueId value) const;

  /// A new storage for the current node. kResourceExhausted for sizes that cannot be.
  Result<Tensor> make(DType dtype, const Sizes& sizes, std::optional<kernels::Layout> layout = {});
  /// A storage that holds `bytes` now; also while steps are only being prepared.
  Tensor make_constant(DType dtype, const Sizes& sizes, std::span<const std::byte> bytes);
  /// The bytes of a small weight or constant, which are there while steps are only being prepared; nullptr of other tensors.
  const std::byte* known_bytes(const Tensor& tensor) const;
  /// True if after the current node nobody needs what lies in the arena storage of `tensor`.
  bool dies_here(const Tensor& tensor) const;
  /// `on_device`: the same for programs on devices, which a node without it cannot be part of.
  void add_step(Step run, const MakeStep& on_device = {}) {
    pending_.push_back({std::move(run), is_on_device() && on_device ? on_device() : Step()});
  }
  bool is_on_device() const { return source_.device.type != DeviceType::kCpu; }
  void forbid_folding() { may_fold_ = false; }
  /// False if another node has said another number.
  bool set_batch_rows(std::int64_t rows) {
    return program_.batch_rows.emplace(program_.batch_rows.value_or(rows)) == rows;
  }

 private:
  struct Storage {
    StorageKind kind = StorageKind::kArena;
    std::size_t bytes = 0;
    std::byte* base = nullptr;
    int made_at = 0;
    int last_use = -1;  // of the values that lie in it
  };

  Status add_inputs_and_parameters();
  Status prepare_node(const Node& node);
  Status finish_node(const Node& node);
  Status fold();
  Status check_outputs(const Node& node) const;
  Status add_output(ValueId output);
  StorageId add_storage(Storage storage);
  const Storage& storage_of(const Tensor& tensor) const { return storages_[static_cast<std::size_t>(tensor.storage)]; }
  bool is_constant(StorageId storage) const;
  bool worth_folding(const Node& node);
  void plan_arena();
  Status place_on_device();
  void note_arena(std::span<const Lifetime> lifetimes) const;

  static constexpr std::size_t kFoldLimit = std::size_t{64} << 10;  // bytes: above, recomputing is as fast as reading
  // Elements read and bytes made by folding one node, and all of them: loading must not take long because of it.
  static constexpr std::int64_t kMostFoldWork = std::int64_t{1} << 19;
  static constexpr std::int64_t kMostFoldWorkInAll = std::int64_t{1} << 24;
  static constexpr int kAlways = 1 << 30;  // last use of what the caller gets

  const ProgramSource& source_;
  const SymbolValues& symbols_;
  Program program_;
  std::vector<Storage> storages_;
  std::vector<std::optional<Tensor>> tensors_;  // by ValueId
  std::vector<int> last_use_;                   // by ValueId: index of the last node that reads it, -1 none
  std::vector<int> parameter_of_;               // by ValueId: its position in Graph::parameters, -1 none
  int node_index_ = 0;
  struct PendingStep {
    Step run;
    Step on_device;
  };
  std::vector<PendingStep> pending_;  // steps of the current node
  std::vector<StorageId> pending_storages_;
  bool may_fold_ = true;
  std::int64_t fold_work_ = 0;
  std::size_t made_bytes_ = 0;  // of all storages
};

}  // namespace accord::engine
