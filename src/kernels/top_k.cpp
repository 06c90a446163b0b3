// Each element that is more extreme than the last one kept is put in its place among those.
#include "kernels/top_k.hpp"

#include <algorithm>
#include <cmath>

namespace accord::kernels {

namespace {

bool above(float a, float b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

}  // namespace

void top_k(const TopKCall& call) {
  const bool largest = call.extreme == Extreme::kLargest;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* const x = call.x + row * call.x_row_stride;
    float* const values = call.values + row * call.k;
    std::int64_t* const indices = call.indices + row * call.k;
    const auto before = [&](float a, float b) { return largest ? above(a, b) : above(b, a); };
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < call.width; ++i) {
      if (kept == call.k && (call.k == 0 || !before(x[i], values[kept - 1]))) continue;
      std::int64_t at = std::min(kept, call.k - 1);
      for (; at > 0 && before(x[i], values[at - 1]); --at) {
        values[at] = values[at - 1];
        indices[at] = indices[at - 1];
      }
      values[at] = x[i];
      indices[at] = i;
      kept = std::min(kept + 1, call.k);
    }
  }
}

}  // namespace accord::kernels
