#pragma once
// Matrix products in fp32 by oneDNN, each computed on the calling thread alone.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "accord/status.hpp"

namespace accord::kernels {

/// What is applied to each output of a linear layer.
enum class Activation : std::uint8_t { kNone, kGeluErf, kGeluTanh, kRelu, kSilu, kTanh };

/// The weights [out, in] of a linear layer, packed once into the layout that the matrix kernels want. Immutable: any number
/// of threads may use it at once. Movable; the memory goes with the object.
class LinearWeights {
 public:
  /// Reads `weights` (`out` rows of `in` floats, `row_stride` floats apart) and keeps a packed copy; the original is not
  /// needed any more. kInvalidArgument if a size is not positive, kResourceExhausted if memory is short.
  /// Cost: one pass over the weights.
  static Result<LinearWeights> pack(const float* weights, std::int64_t out, std::int64_t in, std::int64_t row_stride);
  static Result<LinearWeights> pack(const float* weights, std::int64_t out, std::int64_t in) {
    return pack(weights, out, in, in);
  }
  LinearWeights();
  LinearWeights(LinearWeights&&) noexcept;
  LinearWeights& operator=(LinearWeights&&) noexcept;
  ~LinearWeights();

  std::int64_t out() const;
  std::int64_t in() const;
  /// Bytes of the packed copy: 4 * out * in, with `out` rounded up to the kernel's block (at most 64).
  std::size_t bytes() const;

  /// The packed copy as the product kernels see it; defined in gemm.cpp.
  struct Packed;
  const Packed* packed() const { return packed_.get(); }

 private:
  std::unique_ptr<Packed> packed_;
};

/// y = activation(x * weights^T + bias).
struct LinearCall {
  const float* x = nullptr;       ///< [m, in], rows `x_row_stride` floats apart
  std::int64_t m = 0;             ///< 0 is allowed and does nothing
  std::int64_t x_row_stride = 0;  ///< >= in
  const float* bias = nullptr;    ///< [out], or nullptr
  Activation activation = Activation::kNone;
  float* y = nullptr;             ///< [m, out], rows `y_row_stride` floats apart; overlaps nothing that is read
  std::int64_t y_row_stride = 0;  ///< >= out
};

/// Runs the call on the calling thread. Thread-safe. Prepared kernels are kept by shape (the 512 most recently used of the
/// process): the first call of a shape prepares one (about 0.1-1 ms), later ones only lock a mutex twice for a moment. Rows
/// are computed independently, but their last bits may depend on m.
/// kInvalidArgument for wrong sizes; kInternal if oneDNN refuses.
/// Cost: 2 * m * in * out operations, or the weights read once from memory, whichever is longer.
Status linear(const LinearWeights& weights, const LinearCall& call);

/// Prepares the kernel of `call`'s shape, so that the first run does not pay for it; reads no data pointer (a null bias
/// still means no bias).
Status prepare_linear(const LinearWeights& weights, const LinearCall& call);

enum class Transpose : std::uint8_t { kNo, kYes };

/// c = alpha * a * b + beta * c, or with b transposed, for `batch` independent row-major matrices. Strides in floats.
struct GemmCall {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;  ///< [m, k]
  std::int64_t a_row_stride = 0;
  const float* b = nullptr;  ///< [k, n], or [n, k] when transposed
  std::int64_t b_row_stride = 0;
  Transpose transpose_b = Transpose::kNo;
  float* c = nullptr;  ///< [m, n]; not read when beta is 0
  std::int64_t c_row_stride = 0;
  float alpha = 1.0F;
  float beta = 0.0F;
  std::int64_t batch = 1;  ///< matrix i lies i * *_batch_stride after the first; a stride of 0 repeats an operand
  std::int64_t a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
};

/// Runs on the calling thread. Thread-safe. kInvalidArgument for wrong sizes.
Status gemm(const GemmCall& call);

}  // namespace accord::kernels
