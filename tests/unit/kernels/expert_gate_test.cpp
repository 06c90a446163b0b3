// Gates of experts compared with their definition in double precision.
#include "kernels/expert_gate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "activation_reference.hpp"
#include "every_instruction_set.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

class ExpertGate : public EveryInstructionSet {};
ACCORD_ON_EVERY_INSTRUCTION_SET(ExpertGate);

double inner(const GateOptions& options, double up, const double* gate) {
  const double limit = options.limit > 0 ? options.limit : HUGE_VAL;
  up = std::clamp(up, -limit, limit) + static_cast<double>(options.offset);
  if (gate == nullptr) return activate(options.activation, up);
  const auto alpha = static_cast<double>(options.alpha);
  return activate(options.activation, alpha * std::min(*gate, limit)) / alpha * up;
}

TEST_P(ExpertGate, matches_the_definition_with_and_without_each_part) {
  for (const std::int64_t width : {1, 7, 16, 45}) {
    for (const GateOptions& options :
         {GateOptions{Activation::kSilu}, GateOptions{Activation::kSilu, 0.7F, 1.702F, 1.0F},
          GateOptions{Activation::kGeluTanh, 0.5F}, GateOptions{Activation::kReluSquared, 0.0F, 1.0F, -0.25F}}) {
      for (int parts = 0; parts < 8; ++parts) {
        constexpr std::int64_t kRows = 3;
        const auto count = static_cast<std::size_t>(kRows * width);
        std::vector<float> up = random_floats(count, 1);
        const std::vector<float> before = up, gate = random_floats(count, 2);
        const std::vector<float> up_bias = random_floats(static_cast<std::size_t>(width), 3);
        const std::vector<float> gate_bias = random_floats(static_cast<std::size_t>(width), 4);
        GateCall call{options, kRows, width};
        if ((parts & 1) != 0) call.up_bias = up_bias.data();
        if ((parts & 2) != 0) call.gate = gate.data();
        if ((parts & 4) != 0) call.gate_bias = gate_bias.data();
        call.up = up.data();
        gate_rows(call);
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t column = i % static_cast<std::size_t>(width);
          const double first = static_cast<double>(before[i]) + (call.up_bias ? up_bias[column] : 0.0F);
          const double second = static_cast<double>(gate[i]) + (call.gate_bias ? gate_bias[column] : 0.0F);
          ASSERT_NEAR(static_cast<double>(up[i]), inner(options, first, call.gate ? &second : nullptr), 1e-6)
              << "element " << i << " of width " << width << ", parts " << parts;
        }
      }
    }
  }
}

TEST_P(ExpertGate, values_that_are_not_numbers_stay_so) {
  float up[] = {NAN, 1.0F, HUGE_VALF, -HUGE_VALF};
  const float gate[] = {1.0F, NAN, 1.0F, 1.0F};
  gate_rows({{Activation::kSilu, 7.0F}, 1, 4, nullptr, nullptr, gate, up});
  EXPECT_TRUE(std::isnan(up[0]));
  EXPECT_TRUE(std::isnan(up[1]));
  EXPECT_NEAR(static_cast<double>(up[2]), 7.0 / (1.0 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(static_cast<double>(up[3]), -7.0 / (1.0 + std::exp(-1.0)), 1e-6);
}

}  // namespace
}  // namespace accord::kernels
