#pragma once
// Steps that multiply matrices with the device's library (device/blas.hpp).

#include <optional>

#include "device/blas.hpp"
#include "engine/program/preparation.hpp"

namespace accord::engine {

/// Which of the library's kernels computes a product.
enum class KernelChoice : std::uint8_t {
  kFirst,    ///< the one that the library considers the best: the same on all ranks with such a GPU
  kFastest,  ///< the one that was the fastest when the product first ran (device/product_timing.hpp)
};

/// Returns kFastest, unless other ranks compute the same product with `weight` and need the same bits.
inline KernelChoice choice_for(const Preparation& op, const Tensor& weight) {
  return op.is_own_product(weight) ? KernelChoice::kFastest : KernelChoice::kFirst;
}

/// The optional parts of a product.
struct ProductOptions {
  std::optional<Tensor> bias = std::nullopt;  ///< [n] of c's dtype
  device::Epilogue epilogue = device::Epilogue::kNone;
  float alpha = 1.0F, beta = 0.0F;
  std::optional<Tensor> a_scales = std::nullopt, b_scales = std::nullopt;  ///< for float8: float32 [m] and [n]
  KernelChoice choice = KernelChoice::kFirst;
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
