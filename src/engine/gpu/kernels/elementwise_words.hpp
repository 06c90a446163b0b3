#pragma once
// The kernels of elementwise operations whose operands consist of Words: contiguous tensors, rows with gaps, and rows,
// columns or numbers that are broadcast.

#include "device/divisor.hpp"
#include "engine/gpu/kernels/elementwise_kernel.hpp"
#include "engine/gpu/kernels/units.hpp"

namespace accord::engine {

/// The places of the Words of a kernel's operands. The last dimension of `outer` and what it iterates over are the
/// rows; a row has `words` Words.
struct WordPlaces {
  static constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;
  std::int64_t count = 0;  ///< Words of y, at most kMaxCount
  device::Divisor words;
  Shape outer;
};

/// y = f(a, b) for float32, float16 or bfloat16 operands of one dtype; a number that is broadcast along a row may also
/// be float32. The operation is looked up once for each of Words, not for each element; only operations that models use
/// in their layers are compiled in (has_words_kernel).
template <DType kDType>
struct ElementwiseWords : ElementwiseCall {
  static constexpr const char* kName = kDType == DType::kFloat32   ? "engine_elementwise_words_float32"
                                       : kDType == DType::kFloat16 ? "engine_elementwise_words_float16"
                                                                   : "engine_elementwise_words_bfloat16";
  static constexpr int kThreads = 256, kMinBlocks = 5;
  static constexpr bool kStartsEarly = true;
  WordPlaces rows;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(rows.count); i += block.stride()) {
      const auto index = static_cast<std::uint32_t>(i), row = rows.words.quotient(index);
      const Offsets<4> at = offsets_at(rows.outer, operands, row);
      const auto element = static_cast<std::int64_t>(index - row * rows.words.by()) * kEach;
      Elements a, b;
      load(1, at, element, a);
      if (form == Form::kBinary || form == Form::kGate) load(2, at, element, b);
      compute(a, b);
      *units_at<Unit>(operands[0].data, at.of[0] + element) = Unit::stored(a);
    }
  }

 private:
  using Unit = WordUnit<kDType>;
  static constexpr int kEach = Unit::kCount;
  using Elements = float[kEach];

  ACCORD_ON_DEVICE void load(int operand, const Offsets<4>& at, std::int64_t element, Elements& x) const {
    const Operand& from = operands[operand];
    if (from.strides[rows.outer.dims] != 0) {
      Unit::load(*units_at<Unit>(from.data, at.of[operand] + element), x);
      return;
    }
    const std::int64_t place = at.of[operand];
    const float number = from.dtype == DType::kFloat32 ? device::load_float(from.data, DType::kFloat32, place)
                                                       : device::load_float(from.data, kDType, place);
    ACCORD_UNROLLED
    for (int i = 0; i < kEach; ++i) x[i] = number;
  }

  template <typename Function>
  ACCORD_ON_DEVICE static void replace(Elements& x, const Function& function) {
    ACCORD_UNROLLED
    for (int i = 0; i < kEach; ++i) x[i] = function(x[i]);
  }
  template <typename Function>
  ACCORD_ON_DEVICE static void replace(Elements& a, const Elements& b, const Function& function) {
    ACCORD_UNROLLED
    for (int i = 0; i < kEach; ++i) a[i] = function(a[i], b[i]);
  }

  /// Puts the result in place of a.
  ACCORD_ON_DEVICE void compute(Elements& a, Elements& b) const {
    const auto number = static_cast<float>(first.real), limit = static_cast<float>(second.real);
    switch (form) {
      case Form::kUnary: return compute_unary(a);
      case Form::kGate:
        compute_unary(a);
        round_to_unit<Unit>(a);
        return replace(a, b, [](float x, float y) { return x * y; });
      case Form::kBinaryScalar:
        ACCORD_UNROLLED
        for (int i = 0; i < kEach; ++i) b[i] = number;
        return compute_binary(a, b);
      case Form::kClamp: return replace(a, [=](float x) { return clamped(x, number, limit); });
      default: return compute_binary(a, b);
    }
  }

  ACCORD_ON_DEVICE void compute_unary(Elements& x) const {
    using kernels::UnaryOp;
    switch (unary) {
      case UnaryOp::kSilu: return replace(x, [](float v) { return real_of(UnaryOp::kSilu, v); });
      case UnaryOp::kGeluErf: return replace(x, [](float v) { return real_of(UnaryOp::kGeluErf, v); });
      case UnaryOp::kGeluTanh: return replace(x, [](float v) { return real_of(UnaryOp::kGeluTanh, v); });
      case UnaryOp::kRelu: return replace(x, [](float v) { return real_of(UnaryOp::kRelu, v); });
      case UnaryOp::kSigmoid: return replace(x, [](float v) { return real_of(UnaryOp::kSigmoid, v); });
      case UnaryOp::kTanh: return replace(x, [](float v) { return real_of(UnaryOp::kTanh, v); });
      case UnaryOp::kExp: return replace(x, [](float v) { return real_of(UnaryOp::kExp, v); });
      case UnaryOp::kSqrt: return replace(x, [](float v) { return real_of(UnaryOp::kSqrt, v); });
      case UnaryOp::kRsqrt: return replace(x, [](float v) { return real_of(UnaryOp::kRsqrt, v); });
      case UnaryOp::kReciprocal: return replace(x, [](float v) { return real_of(UnaryOp::kReciprocal, v); });
      case UnaryOp::kAbs: return replace(x, [](float v) { return real_of(UnaryOp::kAbs, v); });
      default: return replace(x, [](float v) { return real_of(UnaryOp::kNeg, v); });
    }
  }

  ACCORD_ON_DEVICE void compute_binary(Elements& a, const Elements& b) const {
    using kernels::BinaryOp;
    switch (binary) {
      case BinaryOp::kAdd: return replace(a, b, [](float x, float y) { return x + y; });
      case BinaryOp::kSub: return replace(a, b, [](float x, float y) { return x - y; });
      case BinaryOp::kMul: return replace(a, b, [](float x, float y) { return x * y; });
      case BinaryOp::kDiv: return replace(a, b, [](float x, float y) { return x / y; });
      case BinaryOp::kMin: return replace(a, b, [](float x, float y) { return real_of(BinaryOp::kMin, x, y, kDType); });
      default: return replace(a, b, [](float x, float y) { return real_of(BinaryOp::kMax, x, y, kDType); });
    }
  }
};

/// Copies rows of y and a, whatever their elements are.
struct CopyWords {
  static constexpr const char* kName = "engine_copy_words";
  static constexpr int kTogether = 4;  ///< loads of a thread on their way
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  WordPlaces rows;
  Operand operands[2] = {};  ///< y, a; strides in Words

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const auto count = static_cast<std::size_t>(rows.count), step = block.stride();
    for (std::size_t first = block.first(); first < count; first += kTogether * step) {
      Words words[kTogether] = {};
      Words* to[kTogether] = {};
      ACCORD_UNROLLED
      for (int k = 0; k < kTogether; ++k) {
        const std::size_t i = first + k * step;
        if (i >= count) continue;
        const auto index = static_cast<std::uint32_t>(i), row = rows.words.quotient(index);
        const Offsets<2> at = offsets_at(rows.outer, operands, row);
        const auto word = static_cast<std::int64_t>(index - row * rows.words.by());
        to[k] = static_cast<Words*>(operands[0].data) + at.of[0] + word;
        words[k] = static_cast<const Words*>(operands[1].data)[at.of[1] + word];
      }
      ACCORD_UNROLLED
      for (int k = 0; k < kTogether; ++k)
        if (first + k * step < count) *to[k] = words[k];
    }
  }
};

}  // namespace accord::engine
