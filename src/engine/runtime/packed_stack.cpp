#include "engine/runtime/packed_stack.hpp"

#include <fmt/format.h>

#include "kernels/index.hpp"
#include "kernels/linear/pack.hpp"

namespace accord::engine {

Result<PackedStack> PackedStack::of_experts(const std::byte* weights, DType dtype,
                                            const std::vector<std::int64_t>& shape, const std::string& name) {
  if (!kernels::is_real(dtype) || shape.size() != 3) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("tensor \"{}\": experts take real weights with three dimensions, not {} with {}", name,
                              to_string(dtype), shape.size()));
  }
  PackedStack packed;
  packed.format_ = kernels::format_of(dtype);
  packed.count_ = shape[0];
  packed.out_ = shape[1];
  packed.in_ = shape[2];
  const std::size_t used = kernels::packed_bytes(packed.format_, packed.out_, packed.in_);
  packed.bytes_of_one_ = (used + 63) / 64 * 64;
  const std::size_t bytes = packed.bytes_of_one_ * static_cast<std::size_t>(packed.count_);
  ACCORD_ASSIGN_OR_RETURN(packed.memory_, Region::allocate(bytes, "tensor \"" + name + "\""));
  const std::size_t plain_bytes = static_cast<std::size_t>(packed.out_ * packed.in_) * size_of(dtype);
  for (std::size_t i = 0; i < static_cast<std::size_t>(packed.count_); ++i) {
    const kernels::WeightSource source{weights + i * plain_bytes, dtype, packed.out_, packed.in_, packed.in_, 1};
    const auto to = packed.memory_.bytes().subspan(i * packed.bytes_of_one_, used);
    ACCORD_RETURN_IF_ERROR(kernels::pack(source, packed.format_, to).status());
  }
  return packed;
}

Result<PackedStack> PackedStack::of_convolution(const std::byte* weight, DType dtype,
                                                const std::vector<std::int64_t>& shape, std::int64_t groups,
                                                const std::string& name) {
  if (!kernels::is_real(dtype) || shape.size() < 3 || shape[0] % groups != 0) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("tensor \"{}\": a convolution of {} groups takes a real weight [out, in, ..] whose outputs "
                    "they divide, not {} with {} dimensions",
                    name, groups, to_string(dtype), shape.size()));
  }
  const std::int64_t out = shape[0], in = shape[1];
  std::int64_t places = 1;
  for (std::size_t i = 2; i < shape.size(); ++i) places *= shape[i];
  const std::size_t bytes = static_cast<std::size_t>(out * in * places) * size_of(dtype);
  ACCORD_ASSIGN_OR_RETURN(const Region turned, Region::allocate(bytes, "reading weights"));
  const std::int64_t sizes[] = {out, places, in}, strides[] = {in * places, 1, places};
  ACCORD_RETURN_IF_ERROR(kernels::copy_strided({weight, dtype, kernels::strided_layout(sizes, strides)},
                                               {turned.data(), dtype, kernels::contiguous_layout(sizes)}));
  return of_experts(turned.data(), dtype, {groups, out / groups, places * in}, name);
}

kernels::PackedMatrix PackedStack::matrix(std::int64_t index) const {
  return kernels::packed_matrix(format_, out_, in_, memory_.data() + static_cast<std::size_t>(index) * bytes_of_one_);
}

}  // namespace accord::engine
