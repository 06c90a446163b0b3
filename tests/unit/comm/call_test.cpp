// Which calls may be taken for a repetition of one that was checked before.
#include "comm/call.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

namespace accord::comm {
namespace {

std::array<float, 8> memory, other;

Call reduction() {
  return Call::reduce(ConstBuffer(memory.data(), 4, DType::kFloat32), Buffer{other.data(), 4, DType::kFloat32},
                      ReduceOp::kSum, 1);
}

TEST(Alike, are_calls_whose_memory_lies_elsewhere) {
  Call moved = reduction();
  moved.input.data = other.data();
  moved.output.data = memory.data();
  EXPECT_TRUE(is_alike(reduction(), moved));
}

TEST(Alike, are_no_calls_that_differ_in_what_is_checked_or_agreed_on) {
  const std::vector<std::pair<const char*, std::function<void(Call&)>>> changes = {
      {"collective", [](Call& call) { call.collective = Collective::kAllReduce; }},
      {"input count", [](Call& call) { call.input.count = 3; }},
      {"output count", [](Call& call) { call.output.count = 5; }},
      {"input dtype", [](Call& call) { call.input.dtype = DType::kInt32; }},
      {"output dtype", [](Call& call) { call.output.dtype = DType::kInt32; }},
      {"input device", [](Call& call) { call.input.device.type = DeviceType::kCuda; }},
      {"output device", [](Call& call) { call.output.device.index = 1; }},
      {"null input", [](Call& call) { call.input.data = nullptr; }},
      {"null output", [](Call& call) { call.output.data = nullptr; }},
      {"op", [](Call& call) { call.op = ReduceOp::kMax; }},
      {"root", [](Call& call) { call.root = 0; }},
      {"direction", [](Call& call) { call.direction = Direction::kSend; }},
      {"division", [](Call& call) { call.division = Division::kByCounts; }},
  };
  for (const auto& [name, change] : changes) {
    Call changed = reduction();
    change(changed);
    EXPECT_FALSE(is_alike(reduction(), changed)) << name;
    EXPECT_FALSE(is_alike(changed, reduction())) << name;
  }
}

TEST(Alike, is_no_call_with_a_factor_or_counts_of_parts_not_even_to_itself) {
  Call scaled = reduction();
  scaled.op = Reduction::premul_sum(2.0);
  EXPECT_FALSE(is_alike(scaled, scaled));
  const std::vector<std::size_t> counts = {4, 4};
  const Call parts = Call::all_gather_v(ConstBuffer(memory.data(), 4, DType::kFloat32),
                                        Buffer{other.data(), 8, DType::kFloat32}, counts);
  EXPECT_FALSE(is_alike(parts, parts));
}

}  // namespace
}  // namespace accord::comm
