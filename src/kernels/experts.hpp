#pragma once
// Mixtures of experts: which rows go to which expert, and the sum of what the experts made of a row.

#include <cstdint>
#include <limits>
#include <optional>

#include "accord/buffer.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

/// Choices sorted by expert; the caller's memory.
struct ExpertGroups {
  std::int64_t* first =
      nullptr;  ///< [experts + 1]: the choices of expert e are order[first[e]] to order[first[e + 1] - 1]
  std::int64_t* order = nullptr;  ///< [choices]: positions in the ids, ascending for each expert
  std::int64_t* place = nullptr;  ///< [choices]: where in `order` each position stands
};

/// Sorts `choices` ids (int64 or int32, contiguous) of `experts` experts; the first id that is none is returned, before anything
/// is written. Allocates nothing. Cost: two passes over the ids.
std::optional<BadId> group_by_expert(const void* ids, DType id_dtype, std::int64_t choices, std::int64_t experts,
                                     const ExpertGroups& groups);

/// y[row] = sum over j of weights[row, j] * x[place[row * top_k + j]], in the order of j and in fp32, rounded once. Choices whose place is
/// not within [first_place, last_place) are left out.
struct CombineCall {
  std::int64_t rows = 0, top_k = 0, width = 0;
  const float* weights = nullptr;       ///< [rows, top_k]
  const std::int64_t* place = nullptr;  ///< [rows, top_k]; none: each choice has its own position
  std::int64_t first_place = 0, last_place = std::numeric_limits<std::int64_t>::max();
  const float* x = nullptr;  ///< [choices, width]
  Rows y;                    ///< [rows, width]
};
/// Rows [first, last) of the call. Allocates nothing.
void combine_experts(const CombineCall& call, std::int64_t first, std::int64_t last);

}  // namespace accord::kernels
