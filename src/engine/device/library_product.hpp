#pragma once
// Steps that multiply by the device's library (device/blas.hpp).

#include <optional>

#include "device/blas.hpp"
#include "engine/runtime/preparation.hpp"

namespace accord::engine {

/// What else belongs to a product.
struct Extras {
  std::optional<Tensor> bias;  ///< [n] of c's dtype
  device::Epilogue epilogue = device::Epilogue::kNone;
  float alpha = 1.0F, beta = 0.0F;
  std::optional<Tensor> a_scales = std::nullopt, b_scales = std::nullopt;  ///< of float8: float32 [m] and [n]
};

/// Adds the step c = epilogue(alpha a * b + beta c + bias) for [batch.., m, k] and [batch.., k, n] with equal, or no, batch dimensions. Matrices
/// whose rows have gaps are copied first. kUnsupported for dtypes that do not go together, and for a product over nothing.
Status add_library_product(Preparation& op, Tensor a, Tensor b, const Tensor& c, const Extras& extras);

/// Whether the library has a kernel for that product. Of the tensors, which have rows or columns without gaps and begin at multiples of 16 bytes, dtypes
/// and layouts count.
Result<bool> has_library_product(Preparation& op, const Tensor& a, const Tensor& b, const Tensor& c,
                                 const Extras& extras);

}  // namespace accord::engine
