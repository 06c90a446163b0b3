#pragma once
// Validation and defaults of a group's configuration.

#include "accord/expert_parallel.hpp"
#include "base/rounding.hpp"
#include "expert/group_setup.hpp"
#include "expert/placement.hpp"
#include "kernels/row_tree.hpp"

namespace accord::expert {

inline constexpr int kMaxExperts = 1 << 24;

/// A configuration with all defaults filled in, and its placement.
struct Resolved {
  ExpertGroupConfig config;
  Placement placement;
};

/// Fails with kInvalidArgument or kUnsupported, which name the field.
Result<Resolved> resolve(ExpertGroupConfig config, int ranks);

/// Fills in the defaults. Fails with kInvalidArgument, which names the field.
Result<ExpertLayerConfig> resolve(ExpertLayerConfig layer, const ExpertGroupConfig& group);

/// Collective. Fails with kMismatch, which names the first field that differs from rank 0's.
Status agree(Communicator& communicator, const GroupSetup& mine);

/// Bytes of a row of `hidden` elements, and the number and bytes of its scales.
inline std::size_t row_bytes(int hidden, DType dtype) { return static_cast<std::size_t>(hidden) * size_of(dtype); }
inline std::int64_t scales_of_row(int hidden) { return quotient_up(std::int64_t{hidden}, kernels::kScaleBlock); }
inline std::size_t scale_bytes(int hidden) { return to_size(scales_of_row(hidden)) * sizeof(float); }
constexpr bool is_float8(DType dtype) { return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2; }

}  // namespace accord::expert
