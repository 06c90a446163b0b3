#include "engine/gpu/own_products.hpp"

#include <algorithm>

#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/kernels/many_rows_kernel.hpp"
#include "engine/gpu/kernels/some_rows_kernel.hpp"
#include "engine/gpu/run.hpp"

namespace accord::engine {
namespace {

// Above this number of rows tensor cores multiply them. Kernels without tensor cores need more instructions for each
// weight, the more rows there are, and are limited by them instead of by memory.
constexpr std::int64_t kRowsOneByOne = 2;
// The most rows of float8 weights that kMany multiplies. For more, the library's faster kernels gain more than it costs
// to widen the weight in memory first.
constexpr std::int64_t kRowsOfMany = 768;

std::int64_t row_bytes(const Tensor& rows) { return rows.stride(0) * static_cast<std::int64_t>(size_of(rows.dtype)); }

// Returns whether rows without gaps inside consist of whole Words.
bool is_in_words(const Tensor& rows) {
  constexpr std::int64_t kWord = sizeof(device::Words);
  const auto width = rows.size(1) * static_cast<std::int64_t>(size_of(rows.dtype));
  return (rows.offset | row_bytes(rows) | width) % kWord == 0;
}

template <int kRows>
Status launch_few_rows(const DeviceRun& run, const ProductCalls& calls) {
  constexpr std::int64_t kOutputsOfBlock = 8;  // one per warp
  std::int64_t outputs = 0;
  for (int i = 0; i < calls.count; ++i) outputs += calls.of[i].n;
  const std::int64_t blocks = ceil_divide(outputs, kOutputsOfBlock);
  if (calls.of[0].weight.scales != nullptr)
    return launch_blocks(run, FewRowsProduct<kRows, WeightKind::kFloat8>{calls}, blocks);
  return launch_blocks(run, FewRowsProduct<kRows, WeightKind::kSameAsRows>{calls}, blocks);
}

Status launch_few_rows(const DeviceRun& run, const ProductCalls& calls) {
  const std::int64_t rows = calls.of[0].m;
  if (rows == 1) return launch_few_rows<1>(run, calls);
  if (rows == 2) return launch_few_rows<2>(run, calls);
  return rows <= 4 ? launch_few_rows<4>(run, calls) : launch_few_rows<kFewRows>(run, calls);
}

template <DType kDType>
Status launch_some_rows(const DeviceRun& run, const ProductCalls& calls) {
  const auto launch = [&](const auto& kernel) {
    return launch_blocks(run, kernel, kernel.blocks(), kernel.kSharedBytes);
  };
  constexpr auto kFloat8 = WeightKind::kFloat8;
  const std::int64_t rows = calls.of[0].m;
  if (calls.of[0].weight.scales == nullptr)
    return launch(SomeRowsProduct<kDType, WeightKind::kSameAsRows, kFewRows>{calls});
  if (rows <= kFewRows) return launch(SomeRowsProduct<kDType, kFloat8, kFewRows>{calls});
  if (rows <= 16) return launch(SomeRowsProduct<kDType, kFloat8, 16>{calls});
  return rows <= 32 ? launch(SomeRowsProduct<kDType, kFloat8, 32>{calls})
                    : launch(SomeRowsProduct<kDType, kFloat8, kSomeRows>{calls});
}

template <DType kDType>
Status launch_many_rows(const DeviceRun& run, const ProductCalls& calls) {
  for (int i = 0; i < calls.count; ++i) {
    const ManyRowsProduct<kDType> kernel{calls.of[i]};
    ACCORD_RETURN_IF_ERROR(launch_blocks(run, kernel, kernel.blocks(), kernel.kSharedBytes));
  }
  return Status();
}

Status launch(const DeviceRun& run, OwnKernel kernel, const ProductCalls& calls) {
  const bool is_bfloat16 = calls.of[0].dtype == DType::kBFloat16;
  switch (kernel) {
    case OwnKernel::kSome:
      return is_bfloat16 ? launch_some_rows<DType::kBFloat16>(run, calls)
                         : launch_some_rows<DType::kFloat16>(run, calls);
    case OwnKernel::kMany:
      return is_bfloat16 ? launch_many_rows<DType::kBFloat16>(run, calls)
                         : launch_many_rows<DType::kFloat16>(run, calls);
    default: return launch_few_rows(run, calls);
  }
}

// Returns everything but addresses.
ProductCall call_of(const Tensor& x, const DeviceLayer& layer) {
  ProductCall call;
  call.dtype = x.dtype;
  call.m = x.size(0);
  call.n = layer.weight.size(0);
  call.k = layer.weight.size(1);
  call.x_row_bytes = row_bytes(x);
  call.activation = layer.activation;
  call.y_dtype = layer.y.dtype;
  return call;
}

void set_addresses(const Execution& execution, const Tensor& x, const DeviceLayer& layer, ProductCall& call) {
  const auto address = [&](const std::optional<Tensor>& tensor) -> std::byte* {
    return tensor ? execution.address(*tensor) : nullptr;
  };
  call.x = execution.address(x);
  call.weight = weight_operand(execution, layer.weight);
  if (layer.gate) call.gate = weight_operand(execution, *layer.gate);
  call.bias = address(layer.bias);
  call.gate_bias = address(layer.gate_bias);
  call.y = execution.address(layer.y);
}

}  // namespace

OwnKernel own_kernel_of(const Preparation& op, const Tensor& x, const DeviceLayer& layer) {
  const Tensor& weight = layer.weight;
  const Tensor gate = layer.gate.value_or(weight);
  const bool are_alike = weight.dtype == gate.dtype && weight.scale_group == gate.scale_group;
  if (!weight.layout.is_contiguous() || !gate.layout.is_contiguous() || !layer.y.layout.is_contiguous() || !are_alike)
    return OwnKernel::kNone;
  const std::int64_t rows = x.size(0);
  const bool on_tensor_cores =
      x.dtype != DType::kFloat32 && !op.is_canonical() && is_in_words(x) && is_in_words(weight) && is_in_words(gate);
  if (rows <= kRowsOneByOne || (rows <= kFewRows && !on_tensor_cores)) return OwnKernel::kFew;
  if (rows <= kFewRows) return OwnKernel::kSome;
  if (!is_float8(weight) || !on_tensor_cores) return OwnKernel::kNone;
  if (rows <= kSomeRows) return OwnKernel::kSome;
  const bool are_scales_in_words = weight.scale_group == 0 || weight.size(0) % 4 == 0;
  return are_scales_in_words && rows <= kRowsOfMany ? OwnKernel::kMany : OwnKernel::kNone;
}

void add_own_products(Preparation& op, OwnKernel kernel, const Tensor& x, std::span<const DeviceLayer> layers) {
  for (std::size_t first = 0; first < layers.size(); first += ProductCalls::kMaxCalls) {
    const auto some = layers.subspan(first, std::min<std::size_t>(ProductCalls::kMaxCalls, layers.size() - first));
    std::vector<DeviceLayer> together(some.begin(), some.end());
    ProductCalls calls;
    for (const DeviceLayer& layer : together) calls.of[calls.count++] = call_of(x, layer);
    op.step([=, together = std::move(together)](const Execution& execution) {
      ProductCalls placed = calls;
      for (std::size_t i = 0; i < together.size(); ++i) set_addresses(execution, x, together[i], placed.of[i]);
      return launch(device_run(execution), kernel, placed);
    });
  }
}

}  // namespace accord::engine
