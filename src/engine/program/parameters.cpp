#include "engine/program/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/index.hpp"

namespace accord::engine {

PackedStack packed_part(const TensorEntry& entry, const TensorPart& part, const std::byte* data) {
  const auto first = entry.sharding ? static_cast<std::int64_t>(part.first_granule) : 0;
  const auto units = entry.sharding ? static_cast<std::int64_t>(part.granules) : 1;
  const bool is_expert_shard = entry.shape.size() == 3 && entry.sharding && entry.sharding->dim == 0;  // of the experts
  return PackedStack(entry.matrix(first, units, data), is_expert_shard ? units * entry.matrices() : entry.matrices(),
                     entry.matrix_bytes());
}

Result<std::vector<const TensorView*>> weights_of(const Graph& graph,
                                                  const std::map<std::string, TensorView>& weights) {
  std::vector<const TensorView*> all;
  for (const Parameter& parameter : graph.parameters) {
    const auto found = weights.find(parameter.tensor);
    const Value& value = graph.values[static_cast<std::size_t>(parameter.value)];
    const auto wrong = [&](const std::string& what) {
      return Status(StatusCode::kInvalidArgument, fmt::format("weight \"{}\" is {}, expected {} {}", parameter.tensor,
                                                              what, to_string(value.dtype), shape_text(value.shape)));
    };
    if (found == weights.end()) return wrong("missing");
    const TensorView& weight = found->second;
    const bool same_shape = SymbolicShape(weight.shape.begin(), weight.shape.end()) == value.shape;
    if (weight.buffer.dtype != value.dtype || !same_shape)
      return wrong(fmt::format("{} {}", to_string(weight.buffer.dtype), sizes_text(weight.shape)));
    if (weight.buffer.device.type != DeviceType::kCpu)
      return Status(StatusCode::kInvalidArgument, fmt::format("weight \"{}\" is on {}, expected CPU memory",
                                                              parameter.tensor, to_string(weight.buffer.device)));
    all.push_back(&weight);
  }
  return all;
}

kernels::Layout inputs_last_layout(std::span<const std::int64_t> sizes) {
  if (sizes.size() < 3) return kernels::contiguous_layout(sizes);  // not a convolution: its op reports the error
  const int dims = static_cast<int>(sizes.size());
  std::vector<std::int64_t> in_memory(sizes.begin(), sizes.end());
  std::rotate(in_memory.begin() + 1, in_memory.begin() + 2, in_memory.end());
  std::vector<int> back = {0, dims - 1};
  for (int dim = 1; dim < dims - 1; ++dim) back.push_back(dim);
  return kernels::permuted_layout(kernels::contiguous_layout(in_memory), back);
}

}  // namespace accord::engine
