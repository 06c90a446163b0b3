// Rotary embedding compared with its definition, element by element.

#include "kernels/attention/rotary.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "every_instruction_set.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

class Rotary : public EveryInstructionSet {};
ACCORD_ON_EVERY_INSTRUCTION_SET(Rotary);

TEST_P(Rotary, rotates_an_element_with_the_one_half_a_head_away) {
  for (const std::int64_t dim : {2, 6, 16, 34, 64, 128}) {
    constexpr std::int64_t kRows = 3, kHeads = 2;
    const std::int64_t in_row = kHeads * dim + 5;  // rows are not packed
    const auto x = random_floats(static_cast<std::size_t>(kRows * in_row), 1);
    const auto cos = random_floats(static_cast<std::size_t>(kRows * dim), 2);
    const auto sin = random_floats(static_cast<std::size_t>(kRows * dim), 3);
    std::vector<float> y(x.size(), 77.0F);
    rotary({.x = x.data(),
            .x_row_stride = in_row,
            .x_head_stride = dim,
            .cos = cos.data(),
            .sin = sin.data(),
            .table_row_stride = dim,
            .y = y.data(),
            .y_row_stride = in_row,
            .y_head_stride = dim,
            .rows = kRows,
            .heads = kHeads,
            .dim = dim});
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t at = 0; at < in_row; ++at) {
        const auto index = static_cast<std::size_t>(row * in_row + at);
        if (at >= kHeads * dim) {
          EXPECT_EQ(y[index], 77.0F);
          continue;
        }
        const std::int64_t i = at % dim;
        const auto table = static_cast<std::size_t>(row * dim + i);
        const bool first = i < dim / 2;
        const auto other = static_cast<std::size_t>(row * in_row + at + (first ? dim / 2 : -dim / 2));
        const double expected = static_cast<double>(x[index]) * static_cast<double>(cos[table]) +
                                (first ? -1.0 : 1.0) * static_cast<double>(x[other]) * static_cast<double>(sin[table]);
        EXPECT_NEAR(static_cast<double>(y[index]), expected, 2e-7) << dim << " " << row << " " << at;
      }
    }
  }
}

}  // namespace
}  // namespace accord::kernels
