// The arithmetic of collectives compared with scalar references: tree order, rounding, special values, tails,
// aliasing.

#include "kernels/reduce/reduce.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "every_instruction_set.hpp"
#include "reduce_reference.hpp"

namespace accord::kernels {
namespace {

constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

std::vector<ReduceOp> ops_of(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kReduceOpCount; ++i)
    if (is_defined(static_cast<ReduceOp>(i), dtype)) ops.push_back(static_cast<ReduceOp>(i));
  return ops;
}

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i < kDTypeCount; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

void run(DType dtype, ReduceOp op, void* destination, void* mirror, const void* const* sources, int n,
         std::size_t count) {
  const ReduceKernel kernel = reduce_kernel(dtype, op);
  ASSERT_NE(kernel, nullptr);
  kernel(destination, mirror, sources, nullptr, n, count);
}

// Sources of random bits, `shift` bytes off any alignment. Kernels get them as void pointers.
template <typename T>
struct Sources {
  std::vector<std::vector<std::byte>> memory;
  std::vector<const void*> pointers;
  Sources(int n, std::size_t count, std::size_t shift, std::mt19937_64& random) {
    for (int i = 0; i < n; ++i) {
      memory.emplace_back(count * sizeof(T) + shift);
      for (std::byte& byte : memory.back()) byte = static_cast<std::byte>(random());
      pointers.push_back(memory.back().data() + shift);
    }
  }
  T at(int source, std::size_t i) const {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(pointers[static_cast<std::size_t>(source)]) + i * sizeof(T),
                sizeof(T));
    return value;
  }
  std::vector<T> column(std::size_t i) const {
    std::vector<T> values;
    for (int source = 0; source < static_cast<int>(pointers.size()); ++source) values.push_back(at(source, i));
    return values;
  }
};

// Factors that differ for each source, and are complex only if the dtype is.
std::vector<std::complex<double>> factors_for(DType dtype, int n) {
  std::vector<std::complex<double>> factors;
  for (int i = 0; i < n; ++i)
    factors.emplace_back(0.7 - 0.3 * i, kind_of(dtype) == DTypeKind::kComplex ? 0.1 + i : 0.0);
  return factors;
}

// Runs a kernel over random bits and compares every element with the reference.
template <typename Ref>
void check_reduction(const Ref& reference, DType dtype, ReduceOp op, int n, std::size_t count) {
  using T = typename Ref::Bits;
  std::mt19937_64 random(static_cast<unsigned>(n) * 1000 + count);
  const Sources<T> sources(n, count, count % 3, random);
  const std::vector<std::complex<double>> factors = factors_for(dtype, n);
  const bool mirrored = count % 2 == 0;
  T untouched;
  std::memset(static_cast<void*>(&untouched), 7, sizeof untouched);
  std::vector<T> result(count + 1, untouched), mirror(count + 1, untouched);
  const ReduceKernel kernel = reduce_kernel(dtype, op);
  ASSERT_NE(kernel, nullptr);
  kernel(result.data(), mirrored ? mirror.data() : nullptr, sources.pointers.data(), factors.data(), n, count);
  for (std::size_t i = 0; i < count; ++i) {
    const T want = reference.reduce(op, sources.column(i), factors);
    ASSERT_TRUE(result[i] == want) << to_string(dtype) << " " << to_string(op) << ", n = " << n << ", element " << i
                                   << " of " << count << ": " << ::testing::PrintToString(result[i]) << " is not "
                                   << ::testing::PrintToString(want);
    ASSERT_TRUE(mirror[i] == (mirrored ? want : untouched));
  }
  ASSERT_TRUE(result[count] == untouched) << "wrote beyond the end";
  ASSERT_TRUE(mirror[count] == untouched) << "wrote beyond the end";
}

class Reduce : public EveryInstructionSet {};

constexpr std::array kRanks = {2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 33};
constexpr std::array<std::size_t, 9> kCounts = {0, 1, 3, 15, 16, 17, 63, 129, 1000};

TEST_P(Reduce, every_op_on_every_dtype_follows_the_canonical_tree_bit_for_bit) {
  for (const DType dtype : all_dtypes()) {
    with_reference(dtype, [&](const auto& reference) {
      for (const ReduceOp op : ops_of(dtype))
        for (const int n : kRanks)
          for (const std::size_t count : kCounts) check_reduction(reference, dtype, op, n, count);
    });
  }
}

TEST_P(Reduce, premul_sum_multiplies_a_single_source_too) {
  for (const DType dtype : all_dtypes()) {
    if (!is_defined(ReduceOp::kPremulSum, dtype)) continue;
    with_reference(dtype,
                   [&](const auto& reference) { check_reduction(reference, dtype, ReduceOp::kPremulSum, 1, 77); });
  }
}

TEST_P(Reduce, bool_is_reduced_as_truth_values) {
  // All pairs of false and true, twice as wide as any group of vectors.
  std::vector<std::uint8_t> a, b;
  for (int i = 0; i < 150; ++i) {
    a.insert(a.end(), {0, 0, 1, 1});
    b.insert(b.end(), {0, 1, 0, 1});
  }
  const std::pair<ReduceOp, std::array<std::uint8_t, 4>> truths[] = {
      {ReduceOp::kSum, {0, 1, 1, 1}},  {ReduceOp::kProduct, {0, 0, 0, 1}}, {ReduceOp::kMin, {0, 0, 0, 1}},
      {ReduceOp::kMax, {0, 1, 1, 1}},  {ReduceOp::kBand, {0, 0, 0, 1}},    {ReduceOp::kBor, {0, 1, 1, 1}},
      {ReduceOp::kBxor, {0, 1, 1, 0}},
  };
  ASSERT_EQ(std::size(truths), ops_of(DType::kBool).size());
  const void* sources[] = {a.data(), b.data()};
  for (const auto& [op, truth] : truths) {
    std::vector<std::uint8_t> result(a.size());
    run(DType::kBool, op, result.data(), nullptr, sources, 2, a.size());
    for (std::size_t i = 0; i < result.size(); ++i) ASSERT_EQ(result[i], truth[i % 4]) << to_string(op);
  }
}

TEST_P(Reduce, every_8_bit_float_is_read_and_rounded_by_its_format) {
  for (const auto& [dtype, format] : {std::pair{DType::kFloat8E4M3FN, &HalfReference::float8_e4m3fn()},
                                      std::pair{DType::kFloat8E5M2, &HalfReference::float8_e5m2()}}) {
    std::vector<std::uint8_t> a(65536), b(65536), result(65536);  // all pairs
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<std::uint8_t>(i);
      b[i] = static_cast<std::uint8_t>(i >> 8);
    }
    const void* sources[] = {a.data(), b.data()};
    run(dtype, ReduceOp::kSum, result.data(), nullptr, sources, 2, a.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(result[i], format->encode(static_cast<float>(format->decode(a[i]) + format->decode(b[i]))))
          << to_string(dtype) << " " << int{a[i]} << " + " << int{b[i]};
  }
}

TEST_P(Reduce, limits_of_8_bit_floats_match_published_values) {
  // OCP 8-bit formats, table 1. E4M3: 448 = 0x7E is the largest, 2^-9 = 0x01 the smallest; it saturates beyond the
  // largest, on either side. E5M2: 57344 = 0x7B; + 2048 leaves it, + 8192 makes it infinity.
  const std::uint8_t a4[] = {0x7E, 0x7E, 0xFE, 0x01, 0x38}, b4[] = {0x58, 0x60, 0xE0, 0x01, 0x38};
  const std::uint8_t want4[] = {0x7E, 0x7E, 0xFE, 0x02, 0x40};
  const std::uint8_t a5[] = {0x7B, 0x7B, 0xFB, 0x01, 0x3C}, b5[] = {0x68, 0x70, 0xF0, 0x01, 0x3C};
  const std::uint8_t want5[] = {0x7B, 0x7C, 0xFC, 0x02, 0x40};
  std::uint8_t result[5];
  const void* sources4[] = {a4, b4};
  run(DType::kFloat8E4M3FN, ReduceOp::kSum, result, nullptr, sources4, 2, 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(result[i], want4[i]) << i;
  const void* sources5[] = {a5, b5};
  run(DType::kFloat8E5M2, ReduceOp::kSum, result, nullptr, sources5, 2, 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(result[i], want5[i]) << i;
}

TEST_P(Reduce, avg_and_premul_sum_of_16_bit_floats_round_once) {
  // 65504 = 0x7BFF is the largest float16: twice it is not a float16, but half of that, and its difference from
  // 65504, are.
  const std::uint16_t largest[] = {0x7BFF};
  const void* sources[] = {largest, largest};
  const std::complex<double> factors[] = {2.0, -1.0};
  std::uint16_t result = 0;
  run(DType::kFloat16, ReduceOp::kAvg, &result, nullptr, sources, 2, 1);
  EXPECT_EQ(result, 0x7BFF);
  reduce_kernel(DType::kFloat16, ReduceOp::kPremulSum)(&result, nullptr, sources, factors, 2, 1);
  EXPECT_EQ(result, 0x7BFF);
}

TEST_P(Reduce, every_16_bit_value_is_read_and_rounded_by_its_format) {
  for (const auto& [dtype, half] : {std::pair{DType::kFloat16, &HalfReference::float16()},
                                    std::pair{DType::kBFloat16, &HalfReference::bfloat16()}}) {
    std::vector<std::uint16_t> all(65536), other(65536), result(65536);
    std::mt19937 random(5);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<std::uint16_t>(i);
      // Close in exponent, so that the sum has more bits than the format and must be rounded.
      other[i] = static_cast<std::uint16_t>((i ^ (random() & 0x87FF)));
    }
    const void* sources[] = {all.data(), other.data()};
    run(dtype, ReduceOp::kSum, result.data(), nullptr, sources, 2, all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float sum = static_cast<float>(half->decode(all[i])) + static_cast<float>(half->decode(other[i]));
      ASSERT_EQ(result[i], half->encode(sum)) << to_string(dtype) << " " << all[i] << " + " << other[i];
    }
  }
}

TEST_P(Reduce, roundings_match_published_values) {
  // float16: 1 + 2^-11 is a tie and rounds to even, so does 1 + 3 * 2^-11; 65504 + 16 is a tie beyond the largest:
  // infinity.
  const std::uint16_t a16[] = {0x3C00, 0x3C01, 0x7BFF, 0x0001}, b16[] = {0x1000, 0x1000, 0x4C00, 0x0001};
  const std::uint16_t want16[] = {0x3C00, 0x3C02, 0x7C00, 0x0002};
  // bfloat16: 1 + 2^-8 is a tie that rounds down to even, 1 + 2^-7 + 2^-8 one that rounds up.
  const std::uint16_t abf[] = {0x3F80, 0x3F81, 0x7F7F, 0x0001}, bbf[] = {0x3B80, 0x3B80, 0x7F7F, 0x0001};
  const std::uint16_t wantbf[] = {0x3F80, 0x3F82, 0x7F80, 0x0002};
  std::uint16_t result[4];
  const void* sources16[] = {a16, b16};
  run(DType::kFloat16, ReduceOp::kSum, result, nullptr, sources16, 2, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(result[i], want16[i]) << i;
  const void* sources_bf[] = {abf, bbf};
  run(DType::kBFloat16, ReduceOp::kSum, result, nullptr, sources_bf, 2, 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(result[i], wantbf[i]) << i;
}

TEST_P(Reduce, special_values_give_equal_results_in_vectors_and_tails) {
  const float denormal = std::numeric_limits<float>::denorm_min();
  const std::vector<float> specials = {0.0F,
                                       -0.0F,
                                       kFloatInfinity,
                                       -kFloatInfinity,
                                       NAN,
                                       -NAN,
                                       denormal,
                                       -denormal,
                                       1.0F,
                                       -1.0F,
                                       std::numeric_limits<float>::max()};
  std::vector<float> a, b;
  for (const float x : specials) {
    for (const float y : specials) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  const void* sources[] = {a.data(), b.data()};
  for (const ReduceOp op : kOps) {
    std::vector<float> whole(a.size());
    run(DType::kFloat32, op, whole.data(), nullptr, sources, 2, a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(whole[i]), bits_of(combine(op, a[i], b[i])))
          << to_string(op) << "(" << a[i] << ", " << b[i] << ")";
      float single = 0.0F;
      const void* one[] = {&a[i], &b[i]};
      run(DType::kFloat32, op, &single, nullptr, one, 2, 1);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(single), std::bit_cast<std::uint32_t>(whole[i]));
    }
  }
}

TEST_P(Reduce, destination_and_mirror_may_each_be_a_source) {
  for (const int n : {1, 2, 3, 4, 7}) {
    std::mt19937_64 random(3);
    constexpr std::size_t kCount = 77;
    Sources<std::int32_t> sources(n, kCount, 4, random);
    const Sources<std::int32_t> before = [&] {
      std::mt19937_64 same(3);
      return Sources<std::int32_t>(n, kCount, 4, same);
    }();
    void* const destination = const_cast<void*>(sources.pointers.back());
    void* const mirror = n > 1 ? const_cast<void*>(sources.pointers.front()) : nullptr;
    run(DType::kInt32, ReduceOp::kSum, destination, mirror, sources.pointers.data(), n, kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::int32_t want =
          tree<std::int32_t>(ReduceOp::kSum, 0, n, [&](int source) { return before.at(source, i); });
      ASSERT_EQ(sources.at(n - 1, i), want);
      if (mirror != nullptr) {
        ASSERT_EQ(sources.at(0, i), want);
      }
    }
  }
}

TEST_P(Reduce, one_source_is_copied) {
  const float source[] = {1.0F, NAN, -0.0F};
  float destination[3] = {}, mirror[3] = {};
  const void* sources[] = {source};
  run(DType::kFloat32, ReduceOp::kMax, destination, mirror, sources, 1, 3);
  EXPECT_EQ(std::memcmp(destination, source, sizeof(source)), 0);
  EXPECT_EQ(std::memcmp(mirror, source, sizeof(source)), 0);
}

TEST_P(Reduce, a_thousand_sources_follow_the_tree) {
  for (const int n : {1000, 1024})
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg})
      check_reduction(float_reference<float, std::uint32_t>(), DType::kFloat32, op, n, 33);
}

ACCORD_ON_EVERY_INSTRUCTION_SET(Reduce);

TEST(ReduceKernel, exists_for_exactly_the_valid_combinations) {
  for (const DType dtype : all_dtypes())
    for (int i = 0; i < kReduceOpCount; ++i) {
      const auto op = static_cast<ReduceOp>(i);
      EXPECT_EQ(reduce_kernel(dtype, op) != nullptr, is_defined(op, dtype))
          << to_string(op) << " of " << to_string(dtype);
    }
}

TEST(InstructionSet, an_unknown_set_is_rejected_with_the_known_names) {
  const Status status = use_instruction_set("AVX33");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(instruction_set()), instruction_sets().front()) << "a refused choice must leave the best one";
}

}  // namespace
}  // namespace accord::kernels
