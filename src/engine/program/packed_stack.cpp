#include "engine/program/packed_stack.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/rounding.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/pack.hpp"

namespace accord::engine {

Result<PackedStack> PackedStack::of_experts(const std::byte* weights, DType dtype,
                                            const std::vector<std::int64_t>& shape, const std::string& name) {
  if (!kernels::is_real(dtype) || shape.size() != 3) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("tensor \"{}\": experts need real weights with three dimensions, not {} with {}", name,
                              to_string(dtype), shape.size()));
  }
  const kernels::PackedFormat format = kernels::format_of(dtype);
  const auto count = static_cast<std::size_t>(shape[0]);
  const std::int64_t out = shape[1], in = shape[2];
  const std::size_t used = kernels::packed_bytes(format, out, in), matrix_bytes = round_up(used, 64);
  ACCORD_ASSIGN_OR_RETURN(Region memory, Region::allocate(matrix_bytes * count, "tensor \"" + name + "\""));
  const std::size_t plain_bytes = static_cast<std::size_t>(out * in) * size_of(dtype);
  for (std::size_t i = 0; weights != nullptr && i < count; ++i) {
    const kernels::WeightSource source{weights + i * plain_bytes, dtype, out, in, in, 1};
    ACCORD_RETURN_IF_ERROR(kernels::pack(source, format, memory.bytes().subspan(i * matrix_bytes, used)).status());
  }
  PackedStack packed(kernels::packed_matrix(format, out, in, memory.data()), shape[0], matrix_bytes);
  packed.memory_ = std::move(memory);
  return packed;
}

Result<PackedStack> PackedStack::of_convolution(const std::byte* weight, DType dtype,
                                                const std::vector<std::int64_t>& shape, std::int64_t groups,
                                                const std::string& name) {
  if (!kernels::is_real(dtype) || shape.size() < 3 || shape[0] % groups != 0) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("tensor \"{}\": a convolution of {} groups needs a real weight [out, in, ..] with a multiple of "
                    "that many outputs, not {} with {} dimensions",
                    name, groups, to_string(dtype), shape.size()));
  }
  const std::int64_t out = shape[0], in = shape[1];
  std::int64_t places = 1;
  for (std::size_t i = 2; i < shape.size(); ++i) places *= shape[i];
  const std::vector<std::int64_t> matrices = {groups, out / groups, places * in};
  if (weight == nullptr) return of_experts(nullptr, dtype, matrices, name);
  const std::size_t bytes = static_cast<std::size_t>(out * in * places) * size_of(dtype);
  ACCORD_ASSIGN_OR_RETURN(const Region reordered, Region::allocate(bytes, "reading weights"));
  const std::int64_t sizes[] = {out, places, in}, strides[] = {in * places, 1, places};
  ACCORD_RETURN_IF_ERROR(kernels::copy_strided({weight, dtype, kernels::strided_layout(sizes, strides)},
                                               {reordered.data(), dtype, kernels::contiguous_layout(sizes)}));
  return of_experts(reordered.data(), dtype, matrices, name);
}

PackedStack::PackedStack(const kernels::PackedMatrix& first, std::int64_t count, std::uint64_t bytes_per_matrix)
    : first_(first), count_(count), bytes_per_matrix_(static_cast<std::int64_t>(bytes_per_matrix)) {}

kernels::PackedMatrix PackedStack::matrix(std::int64_t index) const {
  kernels::PackedMatrix matrix = first_;
  matrix.data += index * bytes_per_matrix_;
  return matrix;
}

}  // namespace accord::engine
