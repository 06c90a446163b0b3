// The kernel that rotates heads and appends them to the cache, by itself, compared with the formulas.
#include <cmath>
#include <cstring>

#include "engine/gpu/kernels/heads_kernel.hpp"
#include "unit/engine/gpu/row_arrays.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::numbers_in;
using accord::testing::rounding_of;
using accord::testing::RowArray;
using accord::testing::run_blocks;

struct HeadsCase {
  std::int64_t heads = 4, kv_heads = 2, head_dim = 32, value_dim = 32;
  bool rotates = true;
  DType cache = DType::kFloat32;
  std::int64_t gap = 0;  ///< between the rows of queries, keys and values
  BlockSize size = {4, 2};
};

// The first rows belong to one sequence, the others to another.
constexpr std::int64_t kHeadRows = 7, kFirstRows = 4, kFirstContext = 3, kTokensOfBlock = 4, kCachedBlocks = 6;
const std::vector<std::int32_t> kBlockTables = {5, 2, 0, 4, 1};  // 5 and 2: of the first sequence

std::size_t to_count(std::int64_t of) { return static_cast<std::size_t>(of); }

template <DType kDType>
class Heads {
 public:
  explicit Heads(const HeadsCase& of) : of_(of) {
    for (std::int64_t row = 0; row < kHeadRows; ++row) {
      const bool is_first = row < kFirstRows;
      places_.push_back(
          {static_cast<std::int32_t>(is_first ? kFirstContext + row : row - kFirstRows), is_first ? 0 : 2, 1});
    }
  }

  void expect() {
    RowArray queries(kDType, q_), keys(kDType, k_), values(kDType, v_), cosines(kDType, cos_), sines(kDType, sin_);
    RowArray rotated(kDType, to_count(kHeadRows * of_.heads * of_.head_dim));
    accord::testing::NaNs cached_keys(cached_bytes(of_.head_dim)), cached_values(cached_bytes(of_.value_dim));
    std::vector<float> key_scales(to_count(kCachedBlocks * of_.kv_heads * kTokensOfBlock), NAN),
        value_scales = key_scales;
    HeadsCall call;
    call.rows = kHeadRows;
    call.head_dim = of_.head_dim;
    if (of_.rotates) {
      call.heads = of_.heads;
      call.x = {queries.data(), kDType, row_of(of_.heads, of_.head_dim), of_.head_dim};
      call.rotated = {rotated.data(), kDType, of_.heads * of_.head_dim, of_.head_dim};
      call.cos = {cosines.data(), kDType, of_.head_dim, 0};
      call.sin = {sines.data(), kDType, of_.head_dim, 0};
    }
    call.keys = {keys.data(), kDType, row_of(of_.kv_heads, of_.head_dim), of_.head_dim};
    call.values = {values.data(), kDType, row_of(of_.kv_heads, of_.value_dim), of_.value_dim};
    call.cache = {cached_keys.data(), cached_values.data(), of_.cache,         kTokensOfBlock,     of_.kv_heads,
                  of_.head_dim,       of_.value_dim,        key_scales.data(), value_scales.data()};
    call.batch = {places_.data(), kBlockTables.data()};
    run_blocks(RotateAndAppend<kDType>{call}, 2, of_.size, 0);
    for (std::int64_t row = 0; row < kHeadRows; ++row) {
      if (of_.rotates) expect_rotated(rotated, row);
      for (std::int64_t head = 0; head < of_.kv_heads; ++head) {
        const std::int64_t to = row_in_cache(row, head);
        expect_cached(cached_keys, key_scales, to, vector_of(k_, of_.kv_heads, of_.head_dim, row, head, of_.rotates));
        expect_cached(cached_values, value_scales, to, vector_of(v_, of_.kv_heads, of_.value_dim, row, head, false));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }

 private:
  std::int64_t row_of(std::int64_t heads, std::int64_t dim) const { return heads * dim + of_.gap; }
  std::size_t cached_bytes(std::int64_t dim) const {
    return to_count(kCachedBlocks * kTokensOfBlock * of_.kv_heads * dim) * size_of(of_.cache);
  }
  std::int64_t row_in_cache(std::int64_t row, std::int64_t head) const {
    const RowPlace place = places_[to_count(row)];
    const std::int64_t block = kBlockTables[to_count(place.table + place.token / kTokensOfBlock)];
    return (block * of_.kv_heads + head) * kTokensOfBlock + place.token % kTokensOfBlock;
  }

  /// A head of a row, rotated by the formula.
  std::vector<float> vector_of(const std::vector<float>& rows, std::int64_t heads, std::int64_t dim, std::int64_t row,
                               std::int64_t head, bool rotates) const {
    const float* const x = rows.data() + row * row_of(heads, dim) + head * dim;
    std::vector<float> vector(x, x + dim);
    const std::int64_t half = dim / 2;
    for (std::int64_t d = 0; rotates && d < dim; ++d) {
      const double other = d < half ? -x[d + half] : x[d - half];
      const std::size_t at = to_count(row * dim + d);
      vector[to_count(d)] = device::rounded_to(kDType, static_cast<float>(double{x[d]} * cos_[at] + other * sin_[at]));
    }
    return vector;
  }

  void expect_rotated(const RowArray& rotated, std::int64_t row) const {
    for (std::int64_t head = 0; head < of_.heads; ++head) {
      const std::vector<float> expected = vector_of(q_, of_.heads, of_.head_dim, row, head, true);
      for (std::int64_t d = 0; d < of_.head_dim; ++d)
        ASSERT_NEAR(rotated[to_count((row * of_.heads + head) * of_.head_dim + d)], expected[to_count(d)],
                    4 * rounding_of(kDType))
            << "row " << row << ", head " << head << ", element " << d;
    }
  }

  // int8: within a code and the rounding. Codes that are the CPU's bit for bit are the subject of decoding_test.cpp.
  void expect_cached(const accord::testing::NaNs& cached, const std::vector<float>& scales, std::int64_t to,
                     const std::vector<float>& expected) const {
    float largest = 0;
    for (const float x : expected) largest = std::max(largest, std::fabs(x));
    const auto dim = static_cast<std::int64_t>(expected.size());
    for (std::int64_t d = 0; d < dim; ++d) {
      const float x = expected[to_count(d)];
      if (of_.cache != DType::kInt8) {
        ASSERT_NEAR(device::load_float(cached.data(), of_.cache, to * dim + d), device::rounded_to(of_.cache, x),
                    4 * std::max(rounding_of(kDType), rounding_of(of_.cache)))
            << "row " << to << " of the cache, element " << d;
        continue;
      }
      const float scale = scales[to_count(to)];
      ASSERT_NEAR(scale, largest / 127, largest / 127 * 4 * rounding_of(kDType));
      const auto code = static_cast<const std::int8_t*>(cached.data())[to * dim + d];
      ASSERT_NEAR(code * scale, x, 0.51F * scale + 4 * rounding_of(kDType));
    }
  }

  const HeadsCase of_;
  const std::vector<float> q_ = numbers_in(kDType, to_count(kHeadRows*row_of(of_.heads, of_.head_dim)), 1),
                           k_ = numbers_in(kDType, to_count(kHeadRows*row_of(of_.kv_heads, of_.head_dim)), 2),
                           v_ = numbers_in(kDType, to_count(kHeadRows*row_of(of_.kv_heads, of_.value_dim)), 3),
                           cos_ = numbers_in(kDType, to_count(kHeadRows*of_.head_dim), 4),
                           sin_ = numbers_in(kDType, to_count(kHeadRows*of_.head_dim), 5);
  std::vector<RowPlace> places_;
};

void expect_heads(HeadsCase of) {
  for (const DType cache : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    SCOPED_TRACE("heads of " + std::to_string(of.head_dim) + ", cache of " + std::string(to_string(cache)));
    of.cache = cache;
    Heads<DType::kFloat32>(of).expect();
    Heads<DType::kBFloat16>(of).expect();
    Heads<DType::kFloat16>(of).expect();
  }
}

TEST(HeadsKernel, rotates_and_appends_heads_of_words_and_of_elements) {
  for (const bool rotates : {true, false})
    for (const std::int64_t dim : {2, 6, 8, 16, 32, 48, 128}) expect_heads({.head_dim = dim, .rotates = rotates});
}

TEST(HeadsKernel, keys_and_values_of_different_sizes) {
  expect_heads({.head_dim = 16, .value_dim = 40});
  expect_heads({.head_dim = 64, .value_dim = 8});
  expect_heads({.head_dim = 24, .value_dim = 13, .rotates = false});
}

TEST(HeadsKernel, blocks_of_any_number_of_threads_and_lanes) {
  for (const BlockSize size : {BlockSize{1, 1}, BlockSize{6, 3}, BlockSize{8, 8}, BlockSize{32, 16}, BlockSize{64, 32}})
    expect_heads({.head_dim = 48, .size = size});
}

// Queries, keys and values of one product are next to each other.
TEST(HeadsKernel, rows_with_gaps) {
  expect_heads({.head_dim = 32, .gap = 64});
  expect_heads({.head_dim = 32, .gap = 3});
}

TEST(HeadsKernel, one_head_of_one_row) { expect_heads({.heads = 1, .kv_heads = 1, .head_dim = 64}); }

}  // namespace
}  // namespace accord::engine
