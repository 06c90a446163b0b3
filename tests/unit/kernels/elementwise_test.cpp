// Elementwise kernels compared with the C library in double precision, with strides, broadcasting and special values.

#include "kernels/elementwise/elementwise.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "every_instruction_set.hpp"
#include "half_reference.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

template <typename T>
constexpr DType kDType = DType::kFloat32;
template <>
constexpr DType kDType<std::int32_t> = DType::kInt32;
template <>
constexpr DType kDType<std::int64_t> = DType::kInt64;
template <>
constexpr DType kDType<std::uint8_t> = DType::kBool;

using Sizes = std::vector<std::int64_t>;

template <typename T>
View view(std::vector<T>& data, const Sizes& sizes) {
  return {data.data(), kDType<T>, contiguous_layout(sizes)};
}
template <typename T>
View vector_view(std::vector<T>& data) {
  return view(data, {static_cast<std::int64_t>(data.size())});
}

class Elementwise : public EveryInstructionSet {};

struct Function {
  UnaryOp op;
  double (*reference)(double);
  float low, high;
  double relative;  ///< times the result
  double absolute;  ///< times max(1, |x|)
};

double gelu_erf(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }
double gelu_tanh(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
double relu(double x) { return x > 0.0 ? x : 0.0; }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double rsqrt(double x) { return 1.0 / std::sqrt(x); }
double negate(double x) { return -x; }
double reciprocal(double x) { return 1.0 / x; }

// 4 ulp of a float are 4.8e-7.
constexpr Function kFunctions[] = {
    {UnaryOp::kGeluErf, gelu_erf, -12, 12, 0, 1e-6},
    {UnaryOp::kGeluTanh, gelu_tanh, -12, 12, 0, 1e-6},
    {UnaryOp::kRelu, relu, -5, 5, 0, 0},
    {UnaryOp::kSilu, silu, -80, 80, 4.8e-7, 0},
    {UnaryOp::kTanh, std::tanh, -12, 12, 4.8e-7, 0},
    {UnaryOp::kTanh, std::tanh, -1e-3F, 1e-3F, 4.8e-7, 0},
    {UnaryOp::kSigmoid, sigmoid, -80, 80, 4.8e-7, 0},
    {UnaryOp::kExp, std::exp, -87, 88, 1.8e-7, 0},
    {UnaryOp::kExp, std::exp, -1, 1, 1.8e-7, 0},
    {UnaryOp::kLog, std::log, 1e-30F, 3.0F, 4.8e-7, 1e-7},
    {UnaryOp::kLog, std::log, 1.0F, 1e30F, 4.8e-7, 0},
    {UnaryOp::kLog1p, std::log1p, -0.999F, 3.0F, 4.8e-7, 0},
    {UnaryOp::kLog1p, std::log1p, -1e-3F, 1e-3F, 4.8e-7, 0},
    {UnaryOp::kLog1p, std::log1p, 1.0F, 1e30F, 4.8e-7, 0},
    {UnaryOp::kSqrt, std::sqrt, 0, 1e6F, 6e-8, 0},
    {UnaryOp::kRsqrt, rsqrt, 1e-6F, 1e6F, 1.8e-7, 0},
    {UnaryOp::kNeg, negate, -5, 5, 0, 0},
    {UnaryOp::kAbs, std::fabs, -5, 5, 0, 0},
    {UnaryOp::kReciprocal, reciprocal, 1e-3F, 1e6F, 6e-8, 0},
    {UnaryOp::kErf, std::erf, -5, 5, 4.8e-7, 0},
    {UnaryOp::kErf, std::erf, -1e-3F, 1e-3F, 4.8e-7, 0},
    {UnaryOp::kSin, std::sin, -30, 30, 0, 2.5e-7},
    {UnaryOp::kCos, std::cos, -30, 30, 0, 2.5e-7},
    {UnaryOp::kSin, std::sin, 1e5F, 1e6F, 0, 2.5e-7},
    {UnaryOp::kFloor, std::floor, -5, 5, 0, 0},
    {UnaryOp::kCeil, std::ceil, -5, 5, 0, 0},
};

TEST_P(Elementwise, unary_functions_are_accurate) {
  for (const Function& function : kFunctions) {
    std::vector<float> x = random_floats(20011, 3, function.low, function.high), y(x.size());
    ASSERT_TRUE(unary(function.op, vector_view(x), vector_view(y)).ok());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double in = static_cast<double>(x[i]), want = function.reference(in);
      const double allowed = function.relative * std::fabs(want) + function.absolute * std::max(1.0, std::fabs(in));
      ASSERT_NEAR(static_cast<double>(y[i]), want, allowed) << to_string(function.op) << "(" << x[i] << ")";
    }
  }
}

TEST_P(Elementwise, unary_functions_handle_special_values) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto at = [](UnaryOp op, float value) {
    std::vector<float> x = {value}, y = {0.0F};
    EXPECT_TRUE(unary(op, vector_view(x), vector_view(y)).ok());
    return y[0];
  };
  for (const Function& function : kFunctions) {
    EXPECT_TRUE(std::isnan(at(function.op, NAN))) << to_string(function.op);
  }
  EXPECT_EQ(at(UnaryOp::kExp, kInfinity), kInfinity);
  EXPECT_EQ(at(UnaryOp::kExp, -kInfinity), 0.0F);
  EXPECT_EQ(at(UnaryOp::kExp, 89.0F), kInfinity);
  EXPECT_NEAR(at(UnaryOp::kExp, -100.0F), 3.8e-44F, 2e-45F);  // a denormal
  EXPECT_EQ(at(UnaryOp::kLog, 0.0F), -kInfinity);
  EXPECT_EQ(at(UnaryOp::kLog, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(at(UnaryOp::kLog, -1.0F)));
  EXPECT_EQ(at(UnaryOp::kLog1p, -1.0F), -kInfinity);
  EXPECT_EQ(at(UnaryOp::kLog1p, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(at(UnaryOp::kLog1p, -1.5F)));
  EXPECT_TRUE(std::signbit(at(UnaryOp::kLog1p, -0.0F)));
  EXPECT_EQ(at(UnaryOp::kTanh, kInfinity), 1.0F);
  EXPECT_EQ(at(UnaryOp::kTanh, -kInfinity), -1.0F);
  EXPECT_EQ(at(UnaryOp::kErf, 30.0F), 1.0F);
  EXPECT_EQ(at(UnaryOp::kSigmoid, -kInfinity), 0.0F);
  EXPECT_EQ(at(UnaryOp::kSigmoid, kInfinity), 1.0F);
  EXPECT_EQ(at(UnaryOp::kRsqrt, 0.0F), kInfinity);
  EXPECT_TRUE(std::isnan(at(UnaryOp::kSqrt, -1.0F)));
  EXPECT_EQ(at(UnaryOp::kGeluErf, 1e30F), 1e30F);
  EXPECT_TRUE(std::signbit(at(UnaryOp::kNeg, 0.0F)));
}

TEST_P(Elementwise, integers_negate_and_take_absolute_values) {
  std::vector<std::int64_t> x = {5, -7, 0, std::numeric_limits<std::int64_t>::min()}, y(4);
  ASSERT_TRUE(unary(UnaryOp::kNeg, vector_view(x), vector_view(y)).ok());
  EXPECT_EQ(y, (std::vector<std::int64_t>{-5, 7, 0, x[3]}));
  ASSERT_TRUE(unary(UnaryOp::kAbs, vector_view(x), vector_view(y)).ok());
  EXPECT_EQ(y, (std::vector<std::int64_t>{5, 7, 0, x[3]}));
  ASSERT_TRUE(unary(UnaryOp::kRelu, vector_view(x), vector_view(y)).ok());
  EXPECT_EQ(y, (std::vector<std::int64_t>{5, 0, 0, 0}));
  std::vector<std::uint8_t> zero(4);
  ASSERT_TRUE(unary(UnaryOp::kLogicalNot, vector_view(x), vector_view(zero)).ok());
  EXPECT_EQ(zero, (std::vector<std::uint8_t>{0, 0, 1, 0}));
}

TEST_P(Elementwise, pow_by_a_scalar) {
  std::vector<float> x = random_floats(77, 3, 0.1F, 3.0F), y(x.size());
  for (const double exponent : {2.0, 3.0, -1.0, 0.5, -0.5, 1.7, 0.0}) {
    ASSERT_TRUE(pow_scalar(vector_view(x), exponent, vector_view(y)).ok());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(y[i]) / std::pow(static_cast<double>(x[i]), exponent), 1.0, 3e-7) << exponent;
    }
  }
}

template <typename T, typename Out>
void check_binary(BinaryOp op, const std::function<Out(T, T)>& reference, std::vector<T> pool) {
  // b is a row that repeats over a's rows; then a column; then one element; then a is a row and b a column.
  for (const auto& [a_sizes, b_sizes] : {std::pair{Sizes{3, 37}, Sizes{37}}, std::pair{Sizes{3, 37}, Sizes{3, 1}},
                                         std::pair{Sizes{3, 37}, Sizes{}}, std::pair{Sizes{1, 37}, Sizes{3, 1}}}) {
    std::vector<T> a(static_cast<std::size_t>(contiguous_layout(a_sizes).count()));
    std::vector<T> b(static_cast<std::size_t>(contiguous_layout(b_sizes).count()));
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = pool[(i * 7 + 1) % pool.size()];
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = pool[(i * 5 + 2) % pool.size()];
    std::vector<Out> y(3 * 37);
    const Status status = binary(op, view(a, a_sizes), view(b, b_sizes), view(y, {3, 37}));
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::size_t row = 0; row < 3; ++row) {
      for (std::size_t column = 0; column < 37; ++column) {
        const T left = a[a.size() == 37 ? column : row * 37 + column];
        const T right = b[b.size() == 1 ? 0 : b.size() == 3 ? row : column];
        const Out got = y[row * 37 + column], want = reference(left, right);
        if constexpr (std::is_same_v<Out, float>) {
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(got)) << to_string(op) << "(" << left << ", " << right << ")";
            continue;
          }
        }
        ASSERT_EQ(got, want) << to_string(op) << "(" << +left << ", " << +right << ")";
      }
    }
  }
}

TEST_P(Elementwise, binary_floats_with_broadcasting_and_nan) {
  const std::vector<float> pool = {1.5F, -2.0F, 0.0F, 3.25F, NAN, 1e30F, -7.0F, 2.0F, 1.5F, 0.5F, 8.0F};
  const auto check = [&](BinaryOp op, float (*f)(float, float)) { check_binary<float, float>(op, f, pool); };
  check(BinaryOp::kAdd, [](float a, float b) { return a + b; });
  check(BinaryOp::kSub, [](float a, float b) { return a - b; });
  check(BinaryOp::kMul, [](float a, float b) { return a * b; });
  check(BinaryOp::kDiv, [](float a, float b) { return a / b; });
  check(BinaryOp::kPow, [](float a, float b) { return std::pow(a, b); });
  check(BinaryOp::kMin, [](float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmin(a, b); });
  check(BinaryOp::kMax, [](float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); });
}

template <typename T>
void check_truths(const std::vector<T>& pool) {
  using Byte = std::uint8_t;
  const auto check = [&](BinaryOp op, bool (*f)(T, T)) {
    check_binary<T, Byte>(
        op, [f](T a, T b) { return static_cast<Byte>(f(a, b)); }, pool);
  };
  check(BinaryOp::kEq, [](T a, T b) { return a == b; });
  check(BinaryOp::kNe, [](T a, T b) { return a != b; });
  check(BinaryOp::kLt, [](T a, T b) { return a < b; });
  check(BinaryOp::kLe, [](T a, T b) { return a <= b; });
  check(BinaryOp::kGt, [](T a, T b) { return a > b; });
  check(BinaryOp::kGe, [](T a, T b) { return a >= b; });
  check(BinaryOp::kLogicalAnd, [](T a, T b) { return a != T{0} && b != T{0}; });
  check(BinaryOp::kLogicalOr, [](T a, T b) { return a != T{0} || b != T{0}; });
  check(BinaryOp::kLogicalXor, [](T a, T b) { return (a != T{0}) != (b != T{0}); });
}

TEST_P(Elementwise, comparisons_and_logic_of_every_dtype) {
  check_truths<float>({1.0F, -2.0F, 0.0F, -0.0F, NAN, 5.0F, 1.0F});
  check_truths<std::int32_t>({1, -2, 0, 7, 1 << 30, 3, 1});
  check_truths<std::int64_t>({1, -2, 0, 7, std::int64_t{1} << 40, 3, 1});
  check_truths<std::uint8_t>({0, 1, 1, 0, 1});
}

TEST_P(Elementwise, integer_arithmetic_wraps_and_divides_towards_zero) {
  using Int = std::int64_t;
  const std::vector<Int> pool = {7, -7, 2, -1, std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max(), 3};
  const auto wrap = [](auto f) {
    return
        [f](Int a, Int b) { return static_cast<Int>(f(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b))); };
  };
  check_binary<Int, Int>(BinaryOp::kAdd, wrap(std::plus<>()), pool);
  check_binary<Int, Int>(BinaryOp::kSub, wrap(std::minus<>()), pool);
  check_binary<Int, Int>(BinaryOp::kMul, wrap(std::multiplies<>()), pool);
  check_binary<Int, Int>(
      BinaryOp::kDiv, [](Int a, Int b) { return b == -1 ? static_cast<Int>(-static_cast<std::uint64_t>(a)) : a / b; },
      pool);
  std::vector<Int> a = {1, 2}, zero = {1, 0}, y(2);
  const Status status = binary(BinaryOp::kDiv, vector_view(a), vector_view(zero), vector_view(y));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("zero"), std::string::npos);
}

TEST_P(Elementwise, operands_may_have_any_strides_and_the_output_may_be_an_input) {
  std::vector<float> data = random_floats(40 * 50, 1), before = data;
  const View transposed{data.data(), DType::kFloat32, strided_layout(Sizes{50, 40}, Sizes{1, 50})};
  ASSERT_TRUE(binary_scalar(BinaryOp::kMul, transposed, Scalar::of(2.0), transposed).ok());
  for (std::size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], 2.0F * before[i]);
  std::vector<float> y(50 * 40);
  ASSERT_TRUE(binary(BinaryOp::kAdd, transposed, transposed, view(y, {50, 40})).ok());
  for (std::size_t row = 0; row < 50; ++row) {
    for (std::size_t column = 0; column < 40; ++column)
      ASSERT_EQ(y[row * 40 + column], 4.0F * before[column * 50 + row]);
  }
  ASSERT_TRUE(unary(UnaryOp::kNeg, vector_view(y), vector_view(y)).ok());
  EXPECT_EQ(y[0], -4.0F * before[0]);
}

TEST_P(Elementwise, long_broadcast_rows_cross_block_boundaries) {
  std::vector<float> a = random_floats(2 * 1300, 1), b = random_floats(2, 2), y(a.size());
  ASSERT_TRUE(binary(BinaryOp::kSub, view(a, {2, 1300}), view(b, {2, 1}), view(y, {2, 1300})).ok());
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], a[i] - b[i / 1300]);
}

TEST_P(Elementwise, where_selects_for_every_element_size) {
  std::vector<std::uint8_t> condition = {1, 0, 0, 1, 0};
  const auto check = [&]<typename T>(T) {
    std::vector<T> a = {1, 1, 1, 1, 1}, b = {0, 0, 0, 0, 0}, y(5);
    ASSERT_TRUE(where(vector_view(condition), vector_view(a), vector_view(b), vector_view(y)).ok());
    EXPECT_EQ(y, (std::vector<T>{1, 0, 0, 1, 0}));
  };
  check(float{});
  check(std::int64_t{});
  check(std::int32_t{});
  check(std::uint8_t{});
}

TEST_P(Elementwise, clamp_keeps_nan_and_limits_the_rest) {
  std::vector<float> x = {-5.0F, 0.25F, 9.0F, NAN}, y(4);
  ASSERT_TRUE(clamp(vector_view(x), Scalar::of(-1.0), Scalar::of(1.0), vector_view(y)).ok());
  EXPECT_EQ(y[0], -1.0F);
  EXPECT_EQ(y[1], 0.25F);
  EXPECT_EQ(y[2], 1.0F);
  EXPECT_TRUE(std::isnan(y[3]));
  std::vector<std::int64_t> ids = {-3, 4, 100}, limited(3);
  ASSERT_TRUE(
      clamp(vector_view(ids), Scalar::of(std::int64_t{0}), Scalar::of(std::int64_t{9}), vector_view(limited)).ok());
  EXPECT_EQ(limited, (std::vector<std::int64_t>{0, 4, 9}));
}

TEST_P(Elementwise, clamp_bounds_beyond_the_integer_range_have_no_effect) {
  std::vector<std::int64_t> ids = {INT64_MIN, -3, 4, INT64_MAX}, limited(4);
  for (const double large : {std::numeric_limits<double>::infinity(), 1e30, 0x1p63}) {
    ASSERT_TRUE(clamp(vector_view(ids), Scalar::of(-large), Scalar::of(large), vector_view(limited)).ok());
    EXPECT_EQ(limited, ids) << large;
  }
  std::vector<std::int32_t> narrow = {INT32_MIN, -3, 4, INT32_MAX}, narrow_limited(4);
  ASSERT_TRUE(clamp(vector_view(narrow), Scalar::of(-0x1p40), Scalar::of(0x1p40), vector_view(narrow_limited)).ok());
  EXPECT_EQ(narrow_limited, narrow);
  EXPECT_EQ(Scalar::of(std::numeric_limits<double>::quiet_NaN()).integer, 0);
  EXPECT_EQ(Scalar::of(-2.7).integer, -2);
}

TEST_P(Elementwise, fill_and_arange) {
  std::vector<float> x(1000);
  ASSERT_TRUE(fill(Scalar::of(2.5), vector_view(x)).ok());
  EXPECT_EQ(x, std::vector<float>(1000, 2.5F));
  std::vector<std::uint8_t> truth(7);
  ASSERT_TRUE(fill(Scalar::of(std::int64_t{5}), vector_view(truth)).ok());
  EXPECT_EQ(truth, std::vector<std::uint8_t>(7, 1));
  std::vector<std::int64_t> ids(4);
  ASSERT_TRUE(arange(Scalar::of(std::int64_t{3}), Scalar::of(std::int64_t{-2}), vector_view(ids)).ok());
  EXPECT_EQ(ids, (std::vector<std::int64_t>{3, 1, -1, -3}));
  ASSERT_TRUE(arange(Scalar::of(INT64_MAX - 1), Scalar::of(std::int64_t{1}), vector_view(ids)).ok());
  EXPECT_EQ(ids, (std::vector<std::int64_t>{INT64_MAX - 1, INT64_MAX, INT64_MIN, INT64_MIN + 1}));
  std::vector<float> steps(3);
  ASSERT_TRUE(arange(Scalar::of(0.5), Scalar::of(0.25), vector_view(steps)).ok());
  EXPECT_EQ(steps, (std::vector<float>{0.5F, 0.75F, 1.0F}));
}

TEST_P(Elementwise, conversions_truncate_and_give_the_lowest_number_for_values_out_of_range) {
  std::vector<float> x = {1.9F, -1.9F, 0.0F, NAN, 1e20F, -1e20F, 2147483648.0F};
  std::vector<std::int32_t> i32(7);
  ASSERT_TRUE(convert(vector_view(x), vector_view(i32)).ok());
  EXPECT_EQ(i32, (std::vector<std::int32_t>{1, -1, 0, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN}));
  std::vector<std::int64_t> i64(7);
  ASSERT_TRUE(convert(vector_view(x), vector_view(i64)).ok());
  EXPECT_EQ(i64, (std::vector<std::int64_t>{1, -1, 0, INT64_MIN, INT64_MIN, INT64_MIN, 2147483648}));
  std::vector<std::uint8_t> bytes(7);
  std::vector<float> wide = {255.9F, 256.0F, -1.7F, 300.0F, NAN, 1e20F, -300.0F};
  ASSERT_TRUE(convert(vector_view(wide), {bytes.data(), DType::kUInt8, contiguous_layout(Sizes{7})}).ok());
  EXPECT_EQ(bytes, (std::vector<std::uint8_t>{255, 0, 255, 44, 0, 0, 212}));
  std::vector<std::uint8_t> truth(7);
  ASSERT_TRUE(convert(vector_view(x), vector_view(truth)).ok());
  EXPECT_EQ(truth, (std::vector<std::uint8_t>{1, 1, 0, 1, 1, 1, 1}));
  std::vector<float> back(7);
  ASSERT_TRUE(convert(vector_view(truth), vector_view(back)).ok());
  EXPECT_EQ(back, (std::vector<float>{1, 1, 0, 1, 1, 1, 1}));
  ASSERT_TRUE(convert(vector_view(i64), vector_view(back)).ok());
  EXPECT_EQ(back[6], 2147483648.0F);
}

TEST_P(Elementwise, conversions_to_16_bits_round_to_even_and_back_are_exact) {
  for (const auto& [dtype, half] : {std::pair{DType::kFloat16, &HalfReference::float16()},
                                    std::pair{DType::kBFloat16, &HalfReference::bfloat16()}}) {
    std::vector<float> x = random_floats(3001, 1, -70000.0F, 70000.0F);
    for (std::size_t i = 0; i < x.size(); i += 2) x[i] = std::ldexp(x[i], -static_cast<int>(i % 45));
    x[5] = NAN;
    std::vector<std::uint16_t> narrow(x.size());
    const Layout layout = contiguous_layout(Sizes{3001});
    ASSERT_TRUE(convert(vector_view(x), {narrow.data(), dtype, layout}).ok());
    std::vector<float> wide(x.size());
    ASSERT_TRUE(convert({narrow.data(), dtype, layout}, vector_view(wide)).ok());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(narrow[i], half->encode(static_cast<double>(x[i]))) << x[i];
      if (i != 5) {
        ASSERT_EQ(static_cast<double>(wide[i]), half->decode(narrow[i]));
      }
    }
  }
}

ACCORD_ON_EVERY_INSTRUCTION_SET(Elementwise);

TEST(ElementwiseErrors, name_the_op_and_the_dtypes_or_sizes) {
  std::vector<float> x(6), y(6);
  std::vector<std::int64_t> ids(6);
  Status status = binary(BinaryOp::kAdd, vector_view(x), vector_view(ids), vector_view(y));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("add: no kernel for float32 and int64"), std::string::npos) << status.message();
  status = unary(UnaryOp::kExp, vector_view(ids), vector_view(ids));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("exp"), std::string::npos) << status.message();
  status = unary(UnaryOp::kExp, view(x, {2, 3}), view(y, {3, 2}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("[2, 3]"), std::string::npos) << status.message();
}

TEST(ElementwiseSizes, of_zero_do_nothing) {
  std::vector<float> x(1), y(1, 4.0F);
  EXPECT_TRUE(unary(UnaryOp::kExp, view(x, {0, 3}), view(y, {0, 3})).ok());
  EXPECT_TRUE(binary(BinaryOp::kAdd, view(x, {3, 0}), view(x, {3, 0}), view(y, {3, 0})).ok());
  EXPECT_EQ(y[0], 4.0F);
}

TEST(LayoutOf, views_broadcast_and_permute_like_numpy) {
  const Layout layout = contiguous_layout(Sizes{4, 1, 3});
  EXPECT_TRUE(layout.is_contiguous());
  const Layout broad = *broadcast_layout(layout, Sizes{2, 4, 5, 3});
  EXPECT_EQ(broad.strides[0], 0);
  EXPECT_EQ(broad.strides[1], 3);
  EXPECT_EQ(broad.strides[2], 0);
  EXPECT_EQ(broad.strides[3], 1);
  EXPECT_FALSE(broadcast_layout(layout, Sizes{4, 2}).ok());
  EXPECT_FALSE(broadcast_layout(layout, Sizes{4, 1, 4}).ok());
  const Layout turned = permuted_layout(layout, std::array{2, 0, 1});
  EXPECT_EQ(turned.sizes[0], 3);
  EXPECT_EQ(turned.strides[1], 3);
  EXPECT_FALSE(turned.is_contiguous());
}

}  // namespace
}  // namespace accord::kernels
