#include "engine/device/norm_on_device.hpp"

#include "engine/device/device_run.hpp"
#include "engine/device/row_kernels.hpp"

namespace accord::engine {

Status run_norm_on_device(const Norm& norm, const Execution& execution) {
  const auto address = [&](const std::optional<Tensor>& tensor) -> void* {
    return tensor ? execution.address(*tensor) : nullptr;
  };
  const std::int64_t width = norm.x.rows.width;
  NormRows kernel;
  kernel.of_mean = norm.kind == NormKind::kLayer;
  kernel.dtype = norm.y.dtype;
  kernel.rows = norm.x.rows.rows;
  kernel.width = width;
  kernel.x = {execution.address(norm.x.tensor), norm.x.rows.stride};
  if (norm.residual) kernel.residual = {execution.address(norm.residual->tensor), norm.residual->rows.stride};
  kernel.y = {execution.address(norm.y), width};
  kernel.sum = {address(norm.sum), width};
  kernel.weight = address(norm.weights.weight);
  kernel.bias = address(norm.weights.bias);
  kernel.addend = address(norm.weights.addend);
  kernel.eps = norm.weights.eps;
  return launch_blocks(*execution.on_device, kernel, kernel.rows);
}

}  // namespace accord::engine
