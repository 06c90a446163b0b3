// Values repeat after `period` elements. The period is 61 times the number of ranks, which divides no usual count, so
// that data in the wrong place is detected. 8-bit floats have at least three significant bits. Therefore at most
// three ranks (which three depends on the position) contribute something other than the neutral element to a sum or
// product, with values of 1 and 2, and the inputs of avg differ from their average by amounts that cancel. Results
// are computed once for each position of the period, in doubles or whole numbers, and encoded here.
#include "cli/bench/reference.hpp"

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "plan/collective.hpp"

namespace accord::cli {
namespace {

using Number = std::complex<double>;
using Element = std::array<std::byte, 16>;

constexpr std::size_t kPrime = 61;

std::size_t mixed(std::size_t i) { return (i * i * 7 + i * 3) % kPrime; }

// Whether `rank` contributes to a sum or product at position `i`. At most three ranks do.
bool takes_part(const KnownCall& call, Rank rank, std::size_t i) {
  return (static_cast<std::size_t>(rank) + i) % static_cast<std::size_t>(call.size) < 3;
}

// A number from 0 to choices - 1.
double pick(Rank rank, std::size_t i, std::size_t choices) {
  return static_cast<double>(mixed(i + 17 * static_cast<std::size_t>(rank)) % choices);
}

double real_value(const KnownCall& call, Rank rank, std::size_t i) {
  if (call.dtype == DType::kBool) return pick(rank, i, 2);
  if (!plan::traits_of(call.collective).reduces) return pick(rank, i, 8);
  switch (call.op) {
    case ReduceOp::kSum:
    case ReduceOp::kPremulSum: return takes_part(call, rank, i) ? 1 + pick(rank, i, 2) : 0;
    case ReduceOp::kProduct: return takes_part(call, rank, i) ? 1 + pick(rank, i, 2) : 1;
    case ReduceOp::kAvg: {
      const bool has_partner = (rank ^ 1) < call.size;
      return 2 + pick(0, i, 2) + (!has_partner ? 0 : rank % 2 == 0 ? 1 : -1);
    }
    default: return pick(rank, i, 8);
  }
}

Number value_at(const KnownCall& call, Rank rank, std::size_t i) {
  if (kind_of(call.dtype) != DTypeKind::kComplex) return real_value(call, rank, i);
  // The neutral element of a product has no imaginary part.
  const bool neutral = call.op == ReduceOp::kProduct && !takes_part(call, rank, i);
  return {real_value(call, rank, i), neutral ? 0 : real_value(call, rank, i + 5 * static_cast<std::size_t>(call.size))};
}

Number combine(const KnownCall& call, Number a, Number b) {
  const auto bits = [](Number value) { return static_cast<std::uint64_t>(value.real()); };
  const auto whole = [](std::uint64_t value) { return Number(static_cast<double>(value)); };
  switch (call.op) {
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a.real(), b.real());
    case ReduceOp::kMax: return std::max(a.real(), b.real());
    case ReduceOp::kBand: return whole(bits(a) & bits(b));
    case ReduceOp::kBor: return whole(bits(a) | bits(b));
    case ReduceOp::kBxor: return whole(bits(a) ^ bits(b));
    default: return a + b;
  }
}

Number combined_at(const KnownCall& call, std::size_t i) {
  Number result = value_at(call, 0, i);
  for (Rank rank = 1; rank < call.size; ++rank) result = combine(call, result, value_at(call, rank, i));
  if (call.op == ReduceOp::kAvg) result /= call.size;
  if (call.op == ReduceOp::kPremulSum) result *= kKnownFactor;
  if (call.dtype == DType::kBool) result = result.real() != 0 ? 1 : 0;
  return result;
}

template <typename T>
void put(Element& element, T value, std::size_t at = 0) {
  std::memcpy(element.data() + at, &value, sizeof value);
}

// Encodes a whole number, at least 0, that the format holds exactly.
template <typename Bits>
Bits small_float(double value, int exponent_bits, int mantissa_bits) {
  if (value == 0) return 0;
  const int exponent = std::ilogb(value);
  const double mantissa = std::ldexp(value, mantissa_bits - exponent) - std::ldexp(1.0, mantissa_bits);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  return static_cast<Bits>(((exponent + bias) << mantissa_bits) | static_cast<int>(mantissa));
}

Element encoded(Number number, DType dtype) {
  Element element = {};
  const double value = number.real();
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool: put(element, static_cast<std::uint8_t>(value)); break;
    case DType::kInt16:
    case DType::kUInt16: put(element, static_cast<std::uint16_t>(value)); break;
    case DType::kInt32:
    case DType::kUInt32: put(element, static_cast<std::uint32_t>(value)); break;
    case DType::kInt64:
    case DType::kUInt64: put(element, static_cast<std::uint64_t>(value)); break;
    case DType::kFloat16: put(element, small_float<std::uint16_t>(value, 5, 10)); break;
    case DType::kBFloat16: put(element, small_float<std::uint16_t>(value, 8, 7)); break;
    case DType::kFloat8E4M3FN: put(element, small_float<std::uint8_t>(value, 4, 3)); break;
    case DType::kFloat8E5M2: put(element, small_float<std::uint8_t>(value, 5, 2)); break;
    case DType::kFloat32: put(element, static_cast<float>(value)); break;
    case DType::kFloat64: put(element, value); break;
    case DType::kComplex64:
      put(element, static_cast<float>(value));
      put(element, static_cast<float>(number.imag()), sizeof(float));
      break;
    case DType::kComplex128:
      put(element, value);
      put(element, number.imag(), sizeof(double));
      break;
  }
  return element;
}

std::size_t elements_of(const plan::BufferRole& role, Rank rank, const KnownCall& call) {
  if (!plan::holds(role, rank, call.root)) return 0;
  return role.divided ? call.count * static_cast<std::size_t>(call.size) : call.count;
}

}  // namespace

struct Reference::Tables {
  std::size_t period = 1;
  std::vector<std::vector<Element>> inputs;  ///< indexed by rank
  std::vector<Element> combined;             ///< empty unless the collective reduces

  explicit Tables(const KnownCall& call) : period(kPrime * static_cast<std::size_t>(call.size)) {
    for (Rank rank = 0; rank < call.size; ++rank) {
      std::vector<Element>& input = inputs.emplace_back(period);
      for (std::size_t i = 0; i < period; ++i) input[i] = encoded(value_at(call, rank, i), call.dtype);
    }
    if (!plan::traits_of(call.collective).reduces) return;
    combined.resize(period);
    for (std::size_t i = 0; i < period; ++i) combined[i] = encoded(combined_at(call, i), call.dtype);
  }

  const Element& input(Rank rank, std::size_t i) const { return inputs[static_cast<std::size_t>(rank)][i % period]; }

  // Element `i` of the output of `rank`.
  const Element& output(const KnownCall& call, Rank rank, std::size_t i) const {
    const std::size_t first = call.count * static_cast<std::size_t>(rank);
    switch (call.collective) {
      case Collective::kBarrier:
      case Collective::kBroadcast:
      case Collective::kSendRecv: return input(call.root, i);
      case Collective::kScatter: return input(call.root, first + i);
      case Collective::kGather:
      case Collective::kAllGather: return input(static_cast<Rank>(i / call.count), i % call.count);
      case Collective::kAllToAll: return input(static_cast<Rank>(i / call.count), first + i % call.count);
      case Collective::kReduceScatter: return combined[(first + i) % period];
      case Collective::kReduce:
      case Collective::kAllReduce: break;
    }
    return combined[i % period];
  }
};

Reference::Reference(const KnownCall& call) : call_(call), tables_(std::make_unique<Tables>(call)) {}
Reference::~Reference() = default;

std::size_t Reference::input_count(Rank rank) const {
  return elements_of(plan::traits_of(call_.collective).input, rank, call_);
}
std::size_t Reference::output_count(Rank rank) const {
  return elements_of(plan::traits_of(call_.collective).output, rank, call_);
}

void Reference::fill(Rank rank, const Buffer& input) const {
  const std::size_t bytes = size_of(call_.dtype);
  auto* to = static_cast<std::byte*>(input.data);
  for (std::size_t i = 0; i < input.count; ++i) std::memcpy(to + i * bytes, tables_->input(rank, i).data(), bytes);
}

WrongElements Reference::check(Rank rank, const ConstBuffer& output) const {
  const std::size_t bytes = size_of(call_.dtype);
  const auto* from = static_cast<const std::byte*>(output.data);
  WrongElements wrong;
  for (std::size_t i = 0; i < output.count; ++i) {
    if (std::memcmp(from + i * bytes, tables_->output(call_, rank, i).data(), bytes) == 0) continue;
    if (wrong.count++ == 0) wrong.first = i;
  }
  return wrong;
}

}  // namespace accord::cli
