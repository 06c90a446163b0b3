#pragma once
// The kernels for attention over the paged cache: which ones compute a call, and how they are launched.

#include "engine/gpu/kernels/attention_kernels.hpp"
#include "engine/gpu/kernels/heads_kernel.hpp"
#include "engine/gpu/run.hpp"

namespace accord::engine::gpu {

/// Returns how many rows of queries fit into the shared memory of a block of PagedAttention or WholeAttention; 0 if not
/// even one does.
int tile_rows(std::int64_t heads_per_kv_head, std::int64_t head_dim, std::int64_t value_dim);

/// Returns how many of the query heads of a key head a block of PagedAttention takes: as many as have room for a row
/// each, and divide the heads; 0 if there is room for none.
int tile_heads(std::int64_t heads_per_kv_head, std::int64_t head_dim, std::int64_t value_dim);

/// Returns PagedCall::parts_of_one. `is_canonical`: the parts must not depend on how many of the heads this rank has.
int parts_of_one(std::int64_t kv_heads, std::int64_t heads_per_kv_head, bool is_canonical);

/// Returns the floats that PagedCall::partial needs in a program of these sizes. Depends on `rows`, `heads`,
/// `parts_of_one`, and the heads of the cache.
std::int64_t partial_floats(const PagedCall& call);

/// Does the work on the heads of the rows, and computes their attention. Launches the kernels for the rows of short
/// sequences, those for the others, or both, by the kind of the run's batch. Where every sequence has one row, the
/// kernel on tensor cores does the work on the heads as well, and is the only one. `call`: with all addresses. Sets its
/// other fields. `heads`: its queries, if they are rotated, its keys and its values.
Status launch_paged_attention(const DeviceRun& run, PagedCall call, const HeadsCall& heads);

}  // namespace accord::engine::gpu
