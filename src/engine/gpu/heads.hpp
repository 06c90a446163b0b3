#pragma once
// The work on the heads of a layer before its attention: rotary embedding, and the append to the cache.

#include "engine/gpu/kernels/heads_kernel.hpp"
#include "engine/gpu/run.hpp"
#include "engine/ops/attention.hpp"

namespace accord::engine::gpu {

/// Returns the rows of [.., heads, tokens, dim] by their strides, without their address.
HeadRows rows_of_heads(const Tensor& tensor);

/// What one cached attention does before it reads the cache.
struct AppendWork {
  CachedAttentionCall call;       ///< all rows have the dtype of its q
  std::optional<Tensor> rotated;  ///< its queries after the rotary embedding, if it has one
  /// The queries of the attention.
  const Tensor& queries() const { return rotated ? *rotated : call.q; }
};
/// Adds conversions of keys, values and tables that do not have the dtype of the queries.
Result<AppendWork> prepare_append(Preparation& op, const CachedAttentionCall& call);
/// Returns the work on the heads of `work`, with all addresses.
HeadsCall heads_call(const AppendWork& work, const Execution& execution);
/// Launches one kernel. `dtype`: of all rows but those of the cache.
Status launch_heads(const DeviceRun& run, const HeadsCall& call, DType dtype);

Status add_rotary(Preparation& op, const RotaryCall& call);

}  // namespace accord::engine::gpu
