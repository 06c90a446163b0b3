#pragma once
// Matrix products on one type of device. device/cuda implements the interface with NVIDIA's cuBLASLt; the tests have
// an implementation over host memory.

#include <cstddef>
#include <cstdint>
#include <string>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::device {

/// The function applied to each element of a product, after its bias.
enum class Epilogue : std::uint8_t { kNone, kRelu, kGeluTanh };

/// Row-major matrices of a batch: element (row, column) of matrix i is at offset i * batch_stride + row * row_stride
/// + column from `data`, in elements.
struct Matrices {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t row_stride = 0;
  std::int64_t batch_stride = 0;
};

enum class SecondLayout : std::uint8_t {
  kRows,     ///< b [n, k]: the weight of a linear layer
  kColumns,  ///< b [k, n]
};

/// c[i] = epilogue(alpha * a[i] * b[i] + beta * c[i] + bias), with a [m, k] and c [m, n], accumulated in float32 and
/// rounded once.
/// a and b are float32, bfloat16, float16 or float8_e4m3fn; c has the same dtype or is float32. float32 is multiplied
/// in full precision, not as TF32. float8 requires kRows, n and k that are multiples of 16, c of bfloat16, float16 or
/// float32, and no bias if c is float32.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  Matrices a, b, c;  ///< c is written
  SecondLayout second_layout = SecondLayout::kRows;
  const void* bias = nullptr;  ///< [n] of c's dtype, added to each row; may be null
  /// For float8, both or neither: float32 [m] and [n]. Element (i, j) of a * b is multiplied by a_scales[i] *
  /// b_scales[j]. Only if Blas::takes_scales(), in a batch of 1, and without epilogue.
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 1.0F;
  float beta = 0.0F;
  /// Whether the kernel that Blas::choose() chose for such products computes it. If false, it is always the one that
  /// the library considers the best, so that it has the same bits on all devices of one model.
  bool uses_choice = false;
  /// Blas::workspace_bytes() of memory on the device, used while the product runs; if null, only kernels that need
  /// none are used.
  void* workspace = nullptr;
};

/// Thread-safe.
class Blas {
 public:
  virtual ~Blas() = default;
  /// Puts the product into `stream`. Fails with kUnsupported if the library has no kernel for it. REQUIRES: m, n, k
  /// and batch are above 0.
  virtual Status multiply(const Product& product, Device device, Stream stream) = 0;

  // The choice among the library's kernels for products of one shape with uses_choice, which choose_fastest() makes
  // (device/product_timing.hpp). Before it, multiply() uses the first, which the library considers the best.
  /// The number of kernels to choose from: 1 if there is only one or one was chosen, 0 if there is none.
  virtual Result<int> candidates(const Product& product, Device device) = 0;
  /// Puts the product into `stream`, computed by candidate `candidate`. Fails with kUnsupported if that cannot run.
  virtual Status multiply_by(int candidate, const Product& product, Device device, Stream stream) = 0;
  /// Makes multiply() use the candidate for products like this one, and for those whose m is close (rows_like()) as
  /// far as the kernel can compute them. The first choice for a shape remains. REQUIRES: product.uses_choice.
  virtual Status choose(int candidate, const Product& product, Device device) = 0;

  /// True if multiply() has a kernel for such a product, whatever the addresses of its matrices, if they are
  /// multiples of 16 bytes. Of the pointers in `product`, only whether they are null matters. Cost: the library's
  /// choice of a kernel, which is cached.
  virtual Result<bool> has(const Product& product, Device device) = 0;
  /// True if products of float8 may have scales on `device`.
  virtual Result<bool> takes_scales(Device device) = 0;
  /// Bytes of Product::workspace.
  virtual std::size_t workspace_bytes() const = 0;
  /// For example "cuBLASLt 13.1.1, .../libcublasLt.so.13".
  virtual std::string describe() const = 0;
};

/// Returns the Blas of `type`. Fails with kUnsupported or kNotFound, with the reason, if there is none.
Result<Blas*> blas_of(DeviceType type);

/// Replaces this build's own Blas, for tests; null restores it.
void replace_blas(DeviceType type, Blas* blas);

}  // namespace accord::device
