#pragma once
// Linear layers by accord's own kernels.

#include <optional>
#include <span>

#include "engine/program/preparation.hpp"
#include "kernels/activation.hpp"

namespace accord::engine {

/// A linear layer of x [m, k], as in LinearLayer.
struct DeviceLayer {
  Tensor weight;                                ///< [n, k]
  std::optional<Tensor> gate, bias, gate_bias;  ///< biases have the dtype of y
  kernels::Activation activation = kernels::Activation::kNone;
  Tensor y;  ///< [m, n], whose rows have no gaps inside
};

/// The kernels that read a weight, and a gate, once, and compute a whole layer.
enum class OwnKernel : std::uint8_t {
  kNone,
  kFew,   ///< up to 8 rows, one product at a time
  kSome,  ///< up to 64 rows, on tensor cores
  kMany,  ///< more rows, on tensor cores, for float8
};

/// Returns the kernel for this layer; kNone if the device's library should multiply it.
///
/// With canonical ranks, kSome and kMany are not used: bits then depend on the row, the weight and the number
/// of rows alone, as they do with the kernels of experts, which compute the other products.
OwnKernel own_kernel_of(const Preparation& op, const Tensor& x, const DeviceLayer& layer);

/// Adds the steps for `layers`, all of which have `kernel` and weights of the same dtype. kFew and kSome compute
/// several of them in one launch.
void add_own_products(Preparation& op, OwnKernel kernel, const Tensor& x, std::span<const DeviceLayer> layers);

}  // namespace accord::engine
