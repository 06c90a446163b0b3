// A counting sort, which is stable: the choices of one expert keep their order. Sums are computed in blocks that stay
// in the L1 cache; the compiler vectorizes the loops.
#include "kernels/experts.hpp"

#include <algorithm>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

std::optional<BadId> group_by_expert(const void* ids, DType id_dtype, std::int64_t choices, std::int64_t experts,
                                     const ExpertGroups& groups) {
  for (std::int64_t i = 0; i < choices; ++i) {
    const std::int64_t id = id_at(ids, id_dtype, i);
    if (id < 0 || id >= experts) return BadId{i, id};
  }
  std::fill_n(groups.first, experts + 1, 0);
  for (std::int64_t i = 0; i < choices; ++i) ++groups.first[id_at(ids, id_dtype, i) + 1];
  for (std::int64_t e = 0; e < experts; ++e) groups.first[e + 1] += groups.first[e];
  // While the choices are placed, first[e] advances to the start of the next expert. It is restored afterwards.
  for (std::int64_t i = 0; i < choices; ++i) {
    groups.place[i] = groups.first[id_at(ids, id_dtype, i)]++;
    groups.order[groups.place[i]] = i;
  }
  std::copy_backward(groups.first, groups.first + experts, groups.first + experts + 1);
  groups.first[0] = 0;
  return std::nullopt;
}

void combine_experts(const CombineCall& call, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kBlock = 1024;
  const RowKernel widen = convert_row_kernel(call.y.dtype, DType::kFloat32);
  const RowKernel round = convert_row_kernel(DType::kFloat32, call.y.dtype);
  const auto place_of = [&](std::int64_t choice) { return call.place == nullptr ? choice : call.place[choice]; };
  const auto is_skipped = [&](std::int64_t choice) {
    const std::int64_t place = place_of(choice);
    return place < call.first_place || place >= call.last_place;
  };
  const auto element = static_cast<std::int64_t>(size_of(call.y.dtype));
  for (std::int64_t row = first; row < last; ++row) {
    const std::int64_t choice = row * call.top_k, end = choice + call.top_k;
    std::int64_t used = 0;
    for (std::int64_t j = choice; j < end; ++j) used += !is_skipped(j);
    if (call.adds && used == 0) continue;
    for (std::int64_t begin = 0; begin < call.width; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, call.width - begin);
      std::byte* const y = static_cast<std::byte*>(call.y.data) + (row * call.y.stride + begin) * element;
      float sums[kBlock] = {};
      if (call.adds) {
        const void* const earlier = y;
        widen(&earlier, sums, count, {});
      }
      for (std::int64_t j = choice; j < end; ++j) {
        if (is_skipped(j)) continue;
        const float* const x = call.x + place_of(j) * call.width + begin;
        const float weight = call.weights == nullptr ? 1.0F : call.weights[j];
        for (std::int64_t i = 0; i < count; ++i) sums[i] += weight * x[i];
      }
      const void* const from = sums;
      round(&from, y, count, {});
    }
  }
}

}  // namespace accord::kernels
