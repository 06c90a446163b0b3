// A token's sum is bit-identical whatever the number of ranks, the placement, the algorithm and the memory: it is the
// sum over the tree of the ids.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "accord/expert_parallel.hpp"
#include "base/element.hpp"
#include "conformance/expert/reference.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/kernels/half_reference.hpp"

namespace accord {
namespace {

using kernels::HalfReference;
using testing::Ids;
using testing::k_of;
using testing::random_ids;
using testing::run_thread_ranks;

constexpr int kTokens = 24, kExperts = 12, kTopK = 6;
constexpr std::size_t kHidden = 150, kScales = 2;

struct Kind {
  DType dtype;
  DType result;
  bool weighted = false;
};
struct Setting {
  int ranks = 1;
  ExpertPlacement placement = {};
  ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto;
  int ranks_per_host = 0;
  bool in_window = false;
};

/// Returns a random number for (token, expert, h), where h is negative for scales and weights.
double random_value(std::int64_t token, std::int64_t expert, std::int64_t h) {
  std::mt19937 random(static_cast<unsigned>(token * 100003 + expert * 1009 + h));
  random.discard(3);
  return static_cast<double>(random()) / 2147483648.0 - 1.0;
}

std::vector<std::byte> bytes_of(double value, DType dtype) {
  std::vector<std::byte> bytes(size_of(dtype));
  const auto store = [&](auto element) { std::memcpy(bytes.data(), &element, sizeof element); };
  if (dtype == DType::kFloat64) store(value);
  if (dtype == DType::kFloat32) store(static_cast<float>(value));
  if (dtype == DType::kFloat16) store(HalfReference::float16().encode(value));
  if (dtype == DType::kBFloat16) store(HalfReference::bfloat16().encode(value));
  if (dtype == DType::kFloat8E4M3FN) store(static_cast<std::uint8_t>(HalfReference::float8_e4m3fn().encode(value)));
  return bytes;
}

/// An expert's output for a token, rounded to `dtype`, with its scale and its weight.
double made(std::int64_t token, std::int64_t expert, std::size_t h, DType dtype) {
  return number_at(bytes_of(random_value(token, expert, static_cast<std::int64_t>(h)), dtype).data(), dtype).real();
}
float scale(std::int64_t token, std::int64_t expert, std::size_t block) {
  return static_cast<float>(2 + random_value(token, expert, -1 - static_cast<std::int64_t>(block)));
}
float weight(std::int64_t token, std::int64_t k) { return static_cast<float>(random_value(token, k, -100)); }

/// Sums by the definition: ids are divided at the highest bit in which they differ, and every operation is rounded.
template <typename Sum>
Sum tree(const std::map<std::int64_t, Sum>& by_expert) {
  if (by_expert.size() == 1) return by_expert.begin()->second;
  const std::int64_t first = by_expert.begin()->first, last = by_expert.rbegin()->first;
  int bit = 40;
  while (((first ^ last) >> bit & 1) == 0) --bit;
  std::map<std::int64_t, Sum> low, high;
  for (const auto& [expert, sum] : by_expert) (expert >> bit & 1 ? high : low)[expert] = sum;
  return tree(low) + tree(high);
}

template <typename Sum>
std::vector<std::byte> expected_row(const std::vector<std::int64_t>& ids, std::int64_t token, const Kind& kind) {
  std::vector<std::byte> row;
  for (std::size_t h = 0; h < kHidden; ++h) {
    std::map<std::int64_t, Sum> sums;
    for (const std::int64_t e : ids) {
      if (e < 0 || e >= kExperts) continue;
      Sum value = static_cast<Sum>(made(token, e, h, kind.dtype));
      if (kind.dtype == DType::kFloat8E4M3FN) value *= scale(token, e, h / 128);
      if (kind.weighted) value *= static_cast<Sum>(weight(token, k_of(ids, e)));
      sums[e] = value;
    }
    const std::vector<std::byte> bytes = bytes_of(sums.empty() ? 0.0 : static_cast<double>(tree(sums)), kind.result);
    row.insert(row.end(), bytes.begin(), bytes.end());
  }
  return row;
}

/// Returns the rows of all tokens, [kTokens, kHidden].
std::vector<std::byte> combined(const Ids& tokens, const Setting& setting, const Kind& kind) {
  const std::size_t row_bytes = kHidden * size_of(kind.result);
  std::vector<std::byte> all(kTokens * row_bytes);
  CommunicatorOptions options;
  options.transport = "inproc";
  run_thread_ranks(setting.ranks, options, [&](Communicator comm) {
    // The ranks get consecutive pieces of the tokens, of unequal length.
    const auto begin = [&](int rank) { return rank == 0 ? 0 : kTokens * (rank + 1) / (setting.ranks + 1); };
    const std::int64_t first = begin(comm.rank()),
                       last = comm.rank() + 1 == setting.ranks ? kTokens : begin(comm.rank() + 1);
    ExpertGroupConfig config{.experts = kExperts,
                             .top_k = kTopK,
                             .hidden = kHidden,
                             .max_tokens_per_rank = kTokens,
                             .alignment = 2,
                             .dtype = kind.dtype,
                             .placement = setting.placement,
                             .algorithm = setting.algorithm,
                             .ranks_per_host = setting.ranks_per_host,
                             .staging_bytes = 1};
    Result<ExpertGroup> group = ExpertGroup::create(comm, config);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    Result<Window> window = comm.window(std::size_t{1} << 20);
    ASSERT_TRUE(window.ok() && group->add_window(*window).ok());
    const Result<ExpertHandle> handle = group->make_handle();
    ASSERT_TRUE(handle.ok());
    std::vector<std::int64_t> ids;
    std::vector<float> weights;
    for (std::int64_t t = first; t < last; ++t)
      for (std::size_t k = 0; k < kTopK; ++k) {
        ids.push_back(tokens[0][static_cast<std::size_t>(t)][k]);
        weights.push_back(weight(t, static_cast<std::int64_t>(k)));
      }
    ASSERT_TRUE(group->prepare(*handle, {.ids = {ids.data(), ids.size(), DType::kInt64}}).ok());

    const auto rows = static_cast<std::size_t>(handle->recv_rows());
    const std::size_t element = size_of(kind.dtype), bytes = rows * kHidden * element;
    std::vector<std::byte> own(bytes);
    std::optional<WindowBlock> block;
    if (setting.in_window) block = *window->allocate(bytes + 1);
    std::byte* const y = block ? block->bytes().data() : own.data();
    std::optional<WindowBlock> scale_block;
    std::vector<float> own_scales(rows * kScales);
    if (setting.in_window) scale_block = *window->allocate(own_scales.size() * sizeof(float) + 1);
    float* const scales = scale_block ? reinterpret_cast<float*>(scale_block->bytes().data()) : own_scales.data();
    std::vector<ExpertChoice> sources(rows);
    handle->sources(sources);
    for (std::size_t slot = 0; slot < rows; ++slot) {
      if (sources[slot].rank < 0) continue;
      const std::int64_t token = begin(sources[slot].rank) + sources[slot].token;
      const std::int64_t e = tokens[0][static_cast<std::size_t>(token)][static_cast<std::size_t>(sources[slot].k)];
      for (std::size_t h = 0; h < kHidden; ++h)
        std::memcpy(y + (slot * kHidden + h) * element,
                    bytes_of(random_value(token, e, static_cast<std::int64_t>(h)), kind.dtype).data(), element);
      for (std::size_t b = 0; b < kScales; ++b) scales[slot * kScales + b] = scale(token, e, b);
    }
    std::vector<std::byte> result(static_cast<std::size_t>(last - first) * row_bytes);
    ExpertCombine call{.expert_out = {y, rows * kHidden, kind.dtype},
                       .result = {result.data(), static_cast<std::size_t>(last - first) * kHidden, kind.result, {}}};
    if (kind.dtype == DType::kFloat8E4M3FN) call.scales = {scales, rows * kScales, DType::kFloat32};
    if (kind.weighted) call.weights = {weights.data(), weights.size(), DType::kFloat32};
    const Status status = group->combine(*handle, call);
    ASSERT_TRUE(status.ok()) << status.to_string();
    std::memcpy(all.data() + static_cast<std::size_t>(first) * row_bytes, result.data(), result.size());
  });
  return all;
}

TEST(CanonicalOrder, sums_are_bit_identical_for_any_number_of_ranks) {
  const Ids tokens = random_ids(77, {kTokens}, kExperts, kTopK);
  const Kind kinds[] = {{DType::kFloat32, DType::kFloat32},           {DType::kFloat32, DType::kBFloat16, true},
                        {DType::kFloat64, DType::kFloat64, true},     {DType::kBFloat16, DType::kBFloat16},
                        {DType::kFloat16, DType::kFloat32, true},     {DType::kFloat8E4M3FN, DType::kBFloat16},
                        {DType::kFloat8E4M3FN, DType::kFloat32, true}};
  const ExpertPlacement mixed = {{0, 3, 5, 8}, {1, 4, 6, 11}, {2, 7, 9, 10}};
  const ExpertPlacement replicas = {{0, 1, 2, 3, 4, 5}, {0, 2, 5, 6, 9, 11}, {4, 6, 7, 8}, {1, 3, 8, 9, 10, 11}};
  const Setting settings[] = {{1},
                              {2},
                              {2, {}, ExpertAlgorithm::kAuto, 0, true},
                              {3, mixed},
                              {3, mixed, ExpertAlgorithm::kAllToAll},
                              {4, replicas},
                              {4, replicas, ExpertAlgorithm::kHierarchical, 2},
                              {4, {}, ExpertAlgorithm::kHierarchical, 2, true},
                              {4, {}, ExpertAlgorithm::kHierarchical, 3},
                              {6, {}, ExpertAlgorithm::kAllToAll}};
  for (const Kind& kind : kinds) {
    std::vector<std::byte> expected;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::vector<std::int64_t>& ids = tokens[0][static_cast<std::size_t>(t)];
      const std::vector<std::byte> row =
          kind.dtype == DType::kFloat64 ? expected_row<double>(ids, t, kind) : expected_row<float>(ids, t, kind);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    for (std::size_t i = 0; i < std::size(settings); ++i)
      EXPECT_EQ(combined(tokens, settings[i], kind), expected)
          << to_string(kind.dtype) << " to " << to_string(kind.result) << ", setting " << i;
  }
}

}  // namespace
}  // namespace accord
