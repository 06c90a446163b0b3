#pragma once
// Attention over a cache whose tokens a group of ranks divides.

#include <vector>

#include "engine/ops/attention.hpp"
#include "engine/program/context_rows.hpp"

namespace accord::engine::host {

/// The rows that ranks exchange. Layers use them one after the other.
struct AttentionExchange {
  std::vector<float> queries;   ///< of all ranks
  std::vector<float> partials;  ///< by destination
  std::vector<float> gathered;  ///< by source
};

/// Runs `call` with rotated queries and keys, on all ranks of the group. `scratch`: one piece per thread.
Status run_divided_attention(const CachedAttentionCall& call, const Tensor& scratch, const ContextRows& rows,
                             const Execution& execution);

}  // namespace accord::engine::host
