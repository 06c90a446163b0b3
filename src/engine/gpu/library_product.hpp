#pragma once
// Steps that multiply matrices with the device's library (device/blas.hpp).

#include <optional>

#include "device/blas.hpp"
#include "engine/program/preparation.hpp"

namespace accord::engine {

/// The optional parts of a product.
struct ProductOptions {
  std::optional<Tensor> bias;  ///< [n] of c's dtype
  device::Epilogue epilogue = device::Epilogue::kNone;
  float alpha = 1.0F, beta = 0.0F;
  std::optional<Tensor> a_scales = std::nullopt, b_scales = std::nullopt;  ///< for float8: float32 [m] and [n]
};

/// Adds the step c = epilogue(alpha a * b + beta c + bias) for [batch.., m, k] and [batch.., k, n] with equal batch
/// dimensions, or none. Matrices whose rows have gaps are copied first. Fails with kUnsupported for dtypes that do
/// not go together, and if k is 0.
Status add_library_product(Preparation& op, Tensor a, Tensor b, const Tensor& c, const ProductOptions& options);

/// Returns whether the library has a kernel for that product. Only the dtypes and layouts of the tensors count. Their
/// rows or columns have no gaps, and they begin at multiples of 16 bytes.
Result<bool> has_library_product(Preparation& op, const Tensor& a, const Tensor& b, const Tensor& c,
                                 const ProductOptions& options);

}  // namespace accord::engine
