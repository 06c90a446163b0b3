#pragma once
// The ops that can run, by full name.

#include <span>
#include <string_view>
#include <vector>

#include "engine/program/preparation.hpp"

namespace accord::engine {

/// One row of a table of ops.
struct OpEntry {
  std::string_view name;  ///< "aten.linear.default"
  PrepareFunction prepare;
};

// The tables, one per file of ops. These see 16-bit floats as they are:
std::span<const OpEntry> elementwise_ops();
std::span<const OpEntry> logical_ops();
std::span<const OpEntry> view_ops();
std::span<const OpEntry> creation_ops();
std::span<const OpEntry> index_ops();
std::span<const OpEntry> collective_ops();
std::span<const OpEntry> exchange_ops();
std::span<const OpEntry> expert_ops();
std::span<const OpEntry> image_ops();
std::span<const OpEntry> stage_ops();
std::span<const OpEntry> matrix_ops();
std::span<const OpEntry> norm_ops();
// These see 16-bit floats as float32, unless the steps take them as they are:
std::span<const OpEntry> attention_ops();
std::span<const OpEntry> cached_attention_ops();
std::span<const OpEntry> recurrence_ops();
// These see 16-bit floats as float32:
std::span<const OpEntry> reduction_ops();
std::span<const OpEntry> softmax_ops();

/// Returns the names of all ops, sorted.
std::vector<std::string_view> op_names();

/// Returns the op for programs with `steps`.
FoundOp find_op(std::string_view name, const StepTable& steps);

/// Fails with kUnsupported for the first op of `graph` that is unknown, naming the op, its module and source, and the
/// nearest op that is known. Whether a device has steps for a known op shows when a program is prepared.
Status check_supported(const Graph& graph);

}  // namespace accord::engine
