#pragma once
// Mixture of experts: groups the rows by expert, and combines the experts' outputs for each row.

#include <cstdint>
#include <limits>
#include <optional>

#include "accord/buffer.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

/// Choices sorted by expert, in the caller's memory.
struct ExpertGroups {
  /// [experts + 1]. The choices of expert e are order[first[e]] to order[first[e + 1] - 1].
  std::int64_t* first = nullptr;
  std::int64_t* order = nullptr;  ///< [choices]: positions in the ids, ascending within each expert
  std::int64_t* place = nullptr;  ///< [choices]: index in `order` of each position
};

/// Sorts `choices` ids (int64 or int32, contiguous) of `experts` experts. If an id is out of range, returns the first
/// such id and writes nothing. Allocates nothing. Cost: two passes over the ids.
std::optional<BadId> group_by_expert(const void* ids, DType id_dtype, std::int64_t choices, std::int64_t experts,
                                     const ExpertGroups& groups);

/// y[row] = sum over j of weights[row, j] * x[place[row * top_k + j]]. Adds in the order of j in fp32 and rounds
/// once. Skips choices whose place is outside [first_place, last_place).
struct CombineCall {
  std::int64_t rows = 0, top_k = 0, width = 0;
  const float* weights = nullptr;       ///< [rows, top_k]; null: all are 1
  const std::int64_t* place = nullptr;  ///< [rows, top_k]; null: each choice uses its own position
  std::int64_t first_place = 0, last_place = std::numeric_limits<std::int64_t>::max();
  const float* x = nullptr;  ///< [choices, width]
  Rows y;                    ///< [rows, width]
  bool adds = false;         ///< to the values that y has; rows without choices stay as they are
};
/// Computes rows [first, last) of the call. Allocates nothing.
void combine_experts(const CombineCall& call, std::int64_t first, std::int64_t last);

}  // namespace accord::kernels
