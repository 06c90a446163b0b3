#pragma once
// The ops that can run, by full name.

#include <span>
#include <string_view>
#include <vector>

#include "engine/program/preparation.hpp"

namespace accord::engine {

using PrepareFunction = Status (*)(Preparation& op);

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
// These see 16-bit floats as float32:
std::span<const OpEntry> reduction_ops();
std::span<const OpEntry> softmax_ops();
std::span<const OpEntry> attention_ops();
std::span<const OpEntry> cached_attention_ops();

// These replace the ops of the same names in programs on devices:
std::span<const OpEntry> device_matrix_ops();
std::span<const OpEntry> device_attention_ops();
std::span<const OpEntry> device_expert_ops();

/// Returns the names of all ops, sorted.
std::vector<std::string_view> op_names();

/// How an op is prepared: its function, and whether it sees 16-bit floats as float32 (Preparation).
struct FoundOp {
  PrepareFunction prepare = nullptr;  ///< nullptr if the op is unknown
  kernels::NarrowFloats narrow = kernels::NarrowFloats::kAsFloat32;
};
/// Returns the op for programs on devices of `type`. Ops of GPUs see 16-bit floats as they are wherever that saves a
/// conversion.
FoundOp find_op(std::string_view name, DeviceType type = DeviceType::kCpu);

/// Fails with kUnsupported for the first op of `graph` that cannot run, naming the op, its module and source, and the
/// nearest op that can run.
Status check_supported(const Graph& graph, DeviceType type = DeviceType::kCpu);

}  // namespace accord::engine
