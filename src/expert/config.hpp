#pragma once
// A group's configuration: what may stand in it, and what is meant where nothing stands.

#include "accord/expert_parallel.hpp"
#include "base/rounding.hpp"
#include "expert/placement.hpp"
#include "kernels/row_tree.hpp"

namespace accord::expert {

inline constexpr int kMostExperts = 1 << 24;

/// A configuration in which nothing is left open, and its placement.
struct Resolved {
  ExpertGroupConfig config;
  Placement placement;
};

/// kInvalidArgument and kUnsupported name the field.
Result<Resolved> resolve(ExpertGroupConfig config, int ranks);

/// kInvalidArgument names the field; in the result nothing is left open.
Result<ExpertLayerConfig> resolve(ExpertLayerConfig layer, const ExpertGroupConfig& group);

/// kMismatch names the first field that differs from that of rank 0. Collective.
Status agree(Communicator& communicator, const Resolved& mine);

/// Bytes of a row of `hidden` elements, and how many scales it has if it has any.
inline std::size_t row_bytes(int hidden, DType dtype) { return static_cast<std::size_t>(hidden) * size_of(dtype); }
inline std::int64_t scales_of_row(int hidden) { return quotient_up(std::int64_t{hidden}, kernels::kScaleBlock); }
constexpr bool is_float8(DType dtype) { return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E5M2; }

}  // namespace accord::expert
