#pragma once
// Matrix products on one type of device, behind one interface: device/cuda has that of NVIDIA's cuBLASLt, tests have one over host memory.

#include <cstddef>
#include <cstdint>
#include <string>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::device {

/// What becomes of each element of a product, after its bias.
enum class Epilogue : std::uint8_t { kNone, kRelu, kGeluTanh };

/// Matrices of a batch, row-major: element (row, column) of matrix i lies i * batch_stride + row * row_stride + column elements from `data`.
struct Matrices {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t row_stride = 0;
  std::int64_t batch_stride = 0;
};

enum class SecondIs : std::uint8_t {
  kRows,     ///< b [n, k]: the weight of a linear layer
  kColumns,  ///< b [k, n]
};

/// c[i] = epilogue(alpha * a[i] * b[i] + beta * c[i] + bias), a [m, k], c [m, n], added up in float32 and rounded once.
/// a and b are float32, bfloat16, float16 or float8_e4m3fn, c of the same dtype or float32. float32 is multiplied as it is, not as TF32.
/// float8 goes with kRows, n and k that are multiples of 16, c of bfloat16, float16 or float32, and no bias for float32.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  Matrices a, b, c;  ///< c is written
  SecondIs second_is = SecondIs::kRows;
  const void* bias = nullptr;  ///< [n] of c's dtype, added to each row; null: none
  /// Of float8, both or none: float32 [m] and [n]. Element (i, j) of a * b is multiplied with a_scales[i] * b_scales[j]. Where
  /// Blas::takes_scales() only, in a batch of 1, without epilogue.
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 1.0F;
  float beta = 0.0F;
  /// Blas::workspace_bytes() of the device, used while the product runs; null: kernels that need none.
  void* workspace = nullptr;
};

/// Thread-safe.
class Blas {
 public:
  virtual ~Blas() = default;
  /// Puts the product into `stream`. kUnsupported for what the library has no kernel for; REQUIRES: m, n, k and batch are above 0.
  virtual Status multiply(const Product& product, Device device, Stream stream) = 0;
  /// Whether multiply() has a kernel for such a product, wherever its matrices begin at multiples of 16 bytes; of addresses it looks alone at which
  /// are null. Cost: that of the library's choice, which it keeps.
  virtual Result<bool> has(const Product& product, Device device) = 0;
  /// Whether products of float8 may have scales on `device`.
  virtual Result<bool> takes_scales(Device device) = 0;
  /// The size of Product::workspace.
  virtual std::size_t workspace_bytes() const = 0;
  /// "cuBLASLt 13.1.1, .../libcublasLt.so.13".
  virtual std::string describe() const = 0;
};

/// That of `type`; kUnsupported or kNotFound say why there is none.
Result<Blas*> blas_of(DeviceType type);

/// In the place of this build's own, for tests; null gives that back.
void replace_blas(DeviceType type, Blas* blas);

}  // namespace accord::device
