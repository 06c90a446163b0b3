// Every dtype has a type for computation; integers wrap, by way of 64-bit unsigned numbers. A small float is rounded
// by counting its steps: those of its exponent, or of the smallest normal exponent.
#include "device/nccl_reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/element.hpp"

namespace accord::testing::nccl {
namespace {

struct TypeFacts {
  std::size_t bytes;
  std::string_view name;
};
constexpr TypeFacts kTypes[ncclNumTypes] = {{1, "int8"},    {1, "uint8"},    {4, "int32"},      {4, "uint32"},
                                            {8, "int64"},   {8, "uint64"},   {2, "float16"},    {4, "float32"},
                                            {8, "float64"}, {2, "bfloat16"}, {1, "float8e4m3"}, {1, "float8e5m2"}};

template <typename T>
struct Whole {
  using Value = T;
  static constexpr std::size_t kBytes = sizeof(T);
  static T load(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(void* to, T value) { std::memcpy(to, &value, sizeof value); }
};

template <DType kDType, typename Bits, int kExponentBits, int kMantissaBits, bool kHasInfinity = true>
struct Small {
  using Value = float;
  static constexpr std::size_t kBytes = sizeof(Bits);
  static float load(const void* from) { return static_cast<float>(number_at(from, kDType).real()); }
  static void store(void* to, float value) {
    constexpr int kBias = (1 << (kExponentBits - 1)) - 1, kHidden = 1 << kMantissaBits;
    constexpr int kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;
    constexpr int kLargest =
        kHasInfinity ? kInfinity : kInfinity + kHidden - 2;             // numbers beyond the finite ones become this
    int bits = kInfinity + (kHasInfinity ? kHidden / 2 : kHidden - 1);  // NaN
    if (!std::isnan(value)) {
      const double magnitude = std::fabs(static_cast<double>(value));
      const int exponent = magnitude == 0 ? 1 - kBias : std::clamp(std::ilogb(magnitude), 1 - kBias, kBias + 2);
      const double steps = std::nearbyint(std::ldexp(magnitude, kMantissaBits - exponent));
      const double code = steps + static_cast<double>((exponent + kBias - 1) * kHidden);
      bits = static_cast<int>(std::min<double>(code, kLargest));
    }
    if (std::signbit(value)) bits |= 1 << (kExponentBits + kMantissaBits);
    const auto stored = static_cast<Bits>(bits);
    std::memcpy(to, &stored, sizeof stored);
  }
};

template <typename T>
T multiplied(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  else
    return a * b;
}

template <typename T>
T combined(ncclRedOp_t op, T a, T b) {
  if (op == ncclProd) return multiplied(a, b);
  if constexpr (std::is_integral_v<T>) {
    if (op == ncclMax) return std::max(a, b);
    if (op == ncclMin) return std::min(a, b);
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    if (op == ncclMax) return std::fmax(a, b);
    if (op == ncclMin) return std::fmin(a, b);
    return a + b;
  }
}

template <typename Element>
void reduce_elements(void* to, std::span<const void* const> from, std::size_t count, ncclRedOp_t op,
                     const std::vector<Scalar>& factors) {
  using Value = typename Element::Value;
  for (std::size_t i = 0; i < count; ++i) {
    const auto term = [&](std::size_t source) {
      const Value value = Element::load(static_cast<const std::byte*>(from[source]) + i * Element::kBytes);
      return op < ncclNumOps ? value : multiplied<Value>(Element::load(factors[source].data()), value);
    };
    Value result = term(0);
    for (std::size_t source = 1; source < from.size(); ++source) result = combined(op, result, term(source));
    if (op == ncclAvg) result = static_cast<Value>(result / static_cast<Value>(from.size()));
    Element::store(static_cast<std::byte*>(to) + i * Element::kBytes, result);
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t dtype) { return dtype >= 0 && dtype < ncclNumTypes ? kTypes[dtype].bytes : 0; }
std::string_view name_of(ncclDataType_t dtype) { return size_of(dtype) == 0 ? "unknown" : kTypes[dtype].name; }

void reduce(void* to, std::span<const void* const> from, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
            const std::vector<Scalar>& factors) {
  using Reduce = void (*)(void*, std::span<const void* const>, std::size_t, ncclRedOp_t, const std::vector<Scalar>&);
  constexpr Reduce kReduce[ncclNumTypes] = {
      reduce_elements<Whole<std::int8_t>>,
      reduce_elements<Whole<std::uint8_t>>,
      reduce_elements<Whole<std::int32_t>>,
      reduce_elements<Whole<std::uint32_t>>,
      reduce_elements<Whole<std::int64_t>>,
      reduce_elements<Whole<std::uint64_t>>,
      reduce_elements<Small<DType::kFloat16, std::uint16_t, 5, 10>>,
      reduce_elements<Whole<float>>,
      reduce_elements<Whole<double>>,
      reduce_elements<Small<DType::kBFloat16, std::uint16_t, 8, 7>>,
      reduce_elements<Small<DType::kFloat8E4M3FN, std::uint8_t, 4, 3, false>>,
      reduce_elements<Small<DType::kFloat8E5M2, std::uint8_t, 5, 2>>,
  };
  kReduce[dtype](to, from, count, op, factors);
}

}  // namespace accord::testing::nccl
