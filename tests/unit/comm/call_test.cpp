// How the two buffers of a call may overlap, and which calls count as repetitions of one that was checked before.
#include "comm/call.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

namespace accord::comm {
namespace {

using ::testing::HasSubstr;

std::array<float, 8> first_array, second_array;

Call reduction() {
  return Call::reduce(ConstBuffer(first_array.data(), 4, DType::kFloat32),
                      Buffer{second_array.data(), 4, DType::kFloat32}, ReduceOp::kSum, 1);
}

TEST(Check, invalid_enum_values_are_rejected) {
  const auto why = [](const std::function<void(Call&)>& change) {
    Call call = reduction();
    change(call);
    return check_call(call, 1, 2).message();
  };
  EXPECT_EQ(why([](Call& call) { call.collective = static_cast<Collective>(55); }), "collective 55 does not exist");
  EXPECT_EQ(name_of({.collective = static_cast<Collective>(55)}), "?");
  EXPECT_EQ(why([](Call& call) { call.collective = Collective::kSendRecv; }),
            "a message must have a direction, and no other call may have one");
  EXPECT_EQ(why([](Call& call) { call.direction = Direction::kSend; }),
            "a message must have a direction, and no other call may have one");
  EXPECT_EQ(why([](Call& call) { call.input.dtype = static_cast<DType>(99); }), "dtype 99 does not exist");
  EXPECT_EQ(why([](Call& call) { call.output.dtype = static_cast<DType>(17); }), "dtype 17 does not exist");
  EXPECT_EQ(why([](Call& call) { call.op = static_cast<ReduceOp>(77); }), "op 77 does not exist");
}

TEST(Alike, are_calls_with_different_memory) {
  Call moved = reduction();
  moved.input.data = second_array.data();
  moved.output.data = first_array.data();
  EXPECT_TRUE(is_alike(reduction(), moved));
}

TEST(Alike, calls_do_not_match_if_only_one_has_overlapping_buffers) {
  Call overlaps = reduction();
  overlaps.output.data = &first_array[1];
  EXPECT_FALSE(is_alike(reduction(), overlaps));
  EXPECT_FALSE(is_alike(overlaps, reduction()));
  Call in_place = reduction(), moved = reduction();
  in_place.output.data = first_array.data();
  moved.input.data = moved.output.data = &first_array[1];
  EXPECT_TRUE(is_alike(in_place, moved));
  EXPECT_FALSE(is_alike(in_place, overlaps));
}

TEST(Alike, calls_differ_if_a_checked_or_agreed_field_differs) {
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

TEST(Alike, calls_with_factors_or_counts_never_match_even_themselves) {
  Call scaled = reduction();
  scaled.op = Reduction::premul_sum(2.0);
  EXPECT_FALSE(is_alike(scaled, scaled));
  const std::vector<std::size_t> counts = {4, 4};
  const Call parts = Call::all_gather_v(ConstBuffer(first_array.data(), 4, DType::kFloat32),
                                        Buffer{second_array.data(), 8, DType::kFloat32}, counts);
  EXPECT_FALSE(is_alike(parts, parts));
}

constexpr int kSize = 4;
constexpr std::size_t kPart = 8;
constexpr std::size_t kAll = kSize * kPart;

class Overlap : public ::testing::Test {
 protected:
  Buffer at(std::size_t first, std::size_t count) { return {&memory_[first], count, DType::kFloat32}; }
  ConstBuffer in(std::size_t first, std::size_t count) { return at(first, count); }

  /// `make` returns the call whose output begins at a given element. Expects that the call is rejected unless the
  /// element is in `fine`.
  template <typename Make>
  void expect_only(const std::string& name, Rank rank, const std::vector<std::size_t>& fine, Make make) {
    for (std::size_t output = 0; output <= 2 * kAll; ++output) {
      const Status status = check_call(make(output), rank, kSize);
      const bool allowed = std::find(fine.begin(), fine.end(), output) != fine.end();
      EXPECT_EQ(status.ok(), allowed) << name << " on rank " << rank << ", output at " << output << ": "
                                      << status.to_string();
      if (allowed) continue;
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("input and output overlap"));
    }
  }

  /// Returns the positions of an output of `count` elements that does not overlap an input of `input_count` elements
  /// at kAll; and `in_place`.
  static std::vector<std::size_t> apart_or(std::size_t count, std::size_t input_count, std::size_t in_place) {
    std::vector<std::size_t> places = {in_place};
    for (std::size_t output = 0; output <= 2 * kAll; ++output)
      if (output + count <= kAll || output >= kAll + input_count) places.push_back(output);
    return places;
  }

  std::vector<float> memory_ = std::vector<float>(4 * kAll);
};

TEST_F(Overlap, of_equal_buffers_is_rejected_unless_they_are_the_same) {
  const std::vector<std::size_t> fine = apart_or(kAll, kAll, kAll);
  expect_only("all_reduce", 1, fine,
              [&](std::size_t out) { return Call::all_reduce(in(kAll, kAll), at(out, kAll), ReduceOp::kSum); });
  expect_only("reduce", 1, fine,
              [&](std::size_t out) { return Call::reduce(in(kAll, kAll), at(out, kAll), ReduceOp::kSum, 1); });
  expect_only("all_to_all", 3, fine, [&](std::size_t out) { return Call::all_to_all(in(kAll, kAll), at(out, kAll)); });
  EXPECT_TRUE(check_call(Call::reduce(in(0, kAll), at(1, kAll), ReduceOp::kSum, 1), 0, kSize).ok()) << "is not used";
}

TEST_F(Overlap, with_a_divided_buffer_is_rejected_unless_it_is_this_ranks_part) {
  for (Rank rank = 0; rank < kSize; ++rank) {
    const std::size_t part = static_cast<std::size_t>(rank) * kPart;
    const std::vector<std::size_t> gathers = apart_or(kAll, kPart, kAll - part);
    const std::vector<std::size_t> scatters = apart_or(kPart, kAll, kAll + part);
    expect_only("all_gather", rank, gathers,
                [&](std::size_t out) { return Call::all_gather(in(kAll, kPart), at(out, kAll)); });
    expect_only("gather", rank, gathers,
                [&](std::size_t out) { return Call::gather(in(kAll, kPart), at(out, kAll), rank); });
    expect_only("reduce_scatter", rank, scatters,
                [&](std::size_t out) { return Call::reduce_scatter(in(kAll, kAll), at(out, kPart), ReduceOp::kSum); });
    expect_only("scatter", rank, scatters,
                [&](std::size_t out) { return Call::scatter(in(kAll, kAll), at(out, kPart), rank); });
  }
}

TEST_F(Overlap, of_unequal_parts_is_rejected_unless_it_is_this_ranks_part) {
  const std::vector<std::size_t> counts = {3, 0, kAll - 8, 5};
  expect_only("all_gather_v", 3, apart_or(kAll, 5, kAll - (kAll - 5)),
              [&](std::size_t out) { return Call::all_gather_v(in(kAll, 5), at(out, kAll), counts); });
  expect_only("reduce_scatter_v", 2, apart_or(kAll - 8, kAll, kAll + 3), [&](std::size_t out) {
    return Call::reduce_scatter_v(in(kAll, kAll), at(out, kAll - 8), counts, ReduceOp::kSum);
  });
  EXPECT_TRUE(check_call(Call::all_gather_v(in(7, 0), at(0, kAll), counts), 1, kSize).ok()) << "nothing overlaps";
}

}  // namespace
}  // namespace accord::comm
