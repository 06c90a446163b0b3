#include "engine/gpu/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "device/memory.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/joined_weights.hpp"
#include "engine/program/row_major_reader.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/float8.hpp"

namespace accord::engine::gpu {
namespace {

// Returns whether every reader of the tensor can read float8. Embeddings have a scale for each row.
bool can_stay_float8(const TensorEntry& entry, const ParameterUse& use) {
  const bool others = use.plain || use.product || use.convolution > 0;
  const bool one_kind = !use.experts || !(use.linear || use.table);
  return entry.packing->format.type == kernels::WeightType::kFloat8 && !entry.packing->transposed && !others &&
         one_kind && (entry.packing->format.group == 0 || !use.table);
}

class DeviceLoader {
 public:
  /// `joined`: the places of weights that share memory.
  DeviceLoader(const EngineDevice& on, std::vector<std::optional<JoinedPlace>> joined, bool keeps_float8 = true)
      : on_(on), keeps_float8_(keeps_float8) {
    parameters.memory.resize(joined.size());
    for (std::size_t i = 0; i < joined.size(); ++i) parameters.memory[i].joined = joined[i];
  }

  Status load(Package& package, const TensorEntry& entry, const TensorPart& part, const ParameterUse& use,
              const Value& value, ParameterMemory& memory) {
    memory.is_sharded = part.sharded;
    memory.has_inputs_last = use.convolution > 0;
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> staged, rows_.of(part_bytes(entry, part)));
    if (!entry.packing) {
      ACCORD_RETURN_IF_ERROR(read_row_major(package, entry, part, units_, staged));
      return use.convolution > 0 ? store_inputs_last(staged, value, entry.name, memory)
                                 : store(staged, entry.name, memory);
    }
    ACCORD_RETURN_IF_ERROR(package.read_granules(entry, part.first_granule, part.granules, staged));
    const PackedStack stack = packed_part(entry, part, staged.data());
    return keeps_float8_ && can_stay_float8(entry, use) ? store_float8(stack, entry, memory)
                                                        : store_unpacked(stack, entry, value, memory);
  }

  Status store(std::span<const std::byte> rows, std::string_view name, ParameterMemory& memory) {
    ACCORD_RETURN_IF_ERROR(copy(rows, name, memory));
    if (rows.empty() || rows.size() > kKnownBytes) return Status();
    ACCORD_ASSIGN_OR_RETURN(Region known, Region::allocate(rows.size(), "a small weight"));
    std::copy(rows.begin(), rows.end(), known.data());
    memory.plain = known.bytes();
    parameters.regions.push_back(std::move(known));
    return Status();
  }

  // `rows`: the weight of a convolution, row-major.
  Status store_inputs_last(std::span<const std::byte> rows, const Value& value, std::string_view name,
                           ParameterMemory& memory) {
    const std::vector<std::int64_t> sizes = constant_sizes(value);
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> ordered, unpacked_.of(rows.size()));
    ACCORD_RETURN_IF_ERROR(kernels::copy_strided({rows.data(), value.dtype, kernels::contiguous_layout(sizes)},
                                                 {ordered.data(), value.dtype, inputs_last_layout(sizes)}));
    return store(ordered, name, memory);
  }

  Parameters parameters;

 private:
  Status copy(std::span<const std::byte> rows, std::string_view name, ParameterMemory& memory) {
    ACCORD_ASSIGN_OR_RETURN(memory.address, place_of(memory, rows.size(), name));
    if (!rows.empty()) {
      ACCORD_RETURN_IF_ERROR(on_.runtime->copy(memory.address, rows.data(), rows.size(), on_.device, {}));
      ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, {}));
    }
    return Status();
  }

  // Returns memory for a weight. The first of several that share memory allocates it for all of them.
  Result<std::byte*> place_of(const ParameterMemory& memory, std::size_t bytes, std::string_view name) {
    std::byte** shared = nullptr;
    if (memory.joined) {
      shared = &shared_[memory.joined->first];
      if (*shared != nullptr) return *shared + memory.joined->offset;
      bytes = memory.joined->all_bytes;
    }
    ACCORD_ASSIGN_OR_RETURN(device::Memory made, device::Memory::allocate(*on_.runtime, on_.device, bytes,
                                                                          fmt::format("tensor \"{}\"", name)));
    std::byte* const begin = made.data();
    parameters.placed_bytes += made.size();
    parameters.placed.push_back(std::make_shared<device::Memory>(std::move(made)));
    if (shared == nullptr) return begin;
    *shared = begin;
    return begin + memory.joined->offset;
  }

  Status store_float8(const PackedStack& stack, const TensorEntry& entry, ParameterMemory& memory) {
    const std::int64_t out = stack.out(), in = stack.in(), groups = stack.format().scales_of(in);
    const Float8Bytes bytes = float8_bytes(stack.count() * out, in, groups);
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> rows, unpacked_.of(bytes.all));
    std::vector<float> by_output(static_cast<std::size_t>(out * groups));
    for (std::int64_t i = 0; i < stack.count(); ++i) {
      auto* const elements = reinterpret_cast<std::uint8_t*>(rows.data()) + i * out * in;
      if (!kernels::copy_float8(stack.matrix(i), elements, by_output.data())) {
        return Status(StatusCode::kCorrupt,
                      fmt::format("tensor \"{}\": units of the same outputs have different scales", entry.name));
      }
      auto* const scales = reinterpret_cast<float*>(rows.data() + bytes.scales) + i * out * groups;
      for (std::int64_t output = 0; output < out; ++output) {
        for (std::int64_t group = 0; group < groups; ++group)
          scales[group * out + output] = by_output[static_cast<std::size_t>(output * groups + group)];
      }
    }
    memory.scale_group = stack.format().group;
    memory.stored_dtype = DType::kFloat8E4M3FN;
    return copy(rows, entry.name, memory);
  }

  // Unpacks one matrix after another; the matrices of experts follow each other in memory. The weights of
  // convolutions are already packed with their inputs last.
  Status store_unpacked(const PackedStack& stack, const TensorEntry& entry, const Value& value,
                        ParameterMemory& memory) {
    std::vector<std::int64_t> sizes = {stack.out(), stack.in()};
    const auto count = static_cast<std::size_t>(sizes[0] * sizes[1]), bytes = count * size_of(value.dtype);
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> wide, wide_.of(count * sizeof(float)));
    kernels::ConstView from{wide.data(), DType::kFloat32, kernels::contiguous_layout(sizes)};
    if (entry.packing->transposed) {  // a weight [in, out], packed as [out, in]
      static constexpr int kOrder[] = {1, 0};
      from.layout = kernels::permuted_layout(from.layout, kOrder);
      std::swap(sizes[0], sizes[1]);
    }
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> rows,
                            unpacked_.of(bytes * static_cast<std::size_t>(stack.count())));
    for (std::int64_t i = 0; i < stack.count(); ++i) {
      kernels::unpack(stack.matrix(i), reinterpret_cast<float*>(wide.data()));
      std::byte* const to = rows.data() + static_cast<std::size_t>(i) * bytes;
      ACCORD_RETURN_IF_ERROR(kernels::convert(from, {to, value.dtype, kernels::contiguous_layout(sizes)}));
    }
    return store(rows, entry.name, memory);
  }

  const EngineDevice& on_;
  const bool keeps_float8_;
  std::map<std::size_t, std::byte*> shared_;  // by JoinedPlace::first
  Staging rows_, units_, wide_, unpacked_;
};

}  // namespace

std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                            bool keeps_float8) {
  const std::vector<ParameterUse> uses = parameter_uses(graph);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Result<const TensorEntry*> found = package.tensor(parts[i].tensor);
    if (!uses[i].any() || !found.ok()) continue;
    const TensorEntry& entry = **found;
    const bool stays = !entry.packing || (keeps_float8 && can_stay_float8(entry, uses[i]));
    std::uint64_t elements = 1;
    for (const std::int64_t size : parts[i].shape) elements *= static_cast<std::uint64_t>(size);
    bytes += stays ? part_bytes(entry, parts[i]) : elements * size_of(entry.dtype);
  }
  return bytes;
}

Result<Parameters> load_parameters(const EngineDevice& on, Package& package, const Graph& graph,
                                   const std::vector<TensorPart>& parts, bool keeps_float8) {
  const std::vector<ParameterUse> uses = parameter_uses(graph);
  const auto is_row_major = [&](std::size_t i) {
    const Result<const TensorEntry*> found = package.tensor(parts[i].tensor);
    if (!found.ok()) return false;
    const bool stays = (*found)->packing && keeps_float8 && can_stay_float8(**found, uses[i]);
    return !stays && uses[i].convolution == 0;
  };
  DeviceLoader loader(on, joined_places(graph, is_row_major), keeps_float8);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!uses[i].any()) continue;
    ACCORD_ASSIGN_OR_RETURN(const TensorEntry* const entry, package.tensor(parts[i].tensor));
    const Value& value = graph.values[static_cast<std::size_t>(graph.parameters[i].value)];
    ACCORD_RETURN_IF_ERROR(loader.load(package, *entry, parts[i], uses[i], value, loader.parameters.memory[i]));
    ParameterBytes& bytes = loader.parameters.bytes;
    (parts[i].sharded ? bytes.sharded : bytes.replicated) += part_bytes(*entry, parts[i]);
  }
  return std::move(loader.parameters);
}

Result<Parameters> reference_parameters(const EngineDevice& on, const Graph& graph,
                                        const std::map<std::string, TensorView>& weights) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<const TensorView*> given, weights_of(graph, weights));
  const std::vector<ParameterUse> uses = parameter_uses(graph);
  DeviceLoader loader(on, joined_places(graph, [&](std::size_t i) { return uses[i].convolution == 0; }));
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!uses[i].any()) continue;
    const Buffer& buffer = given[i]->buffer;
    const std::span rows(static_cast<const std::byte*>(buffer.data), buffer.bytes());
    const std::string& name = graph.parameters[i].tensor;
    ParameterMemory& memory = loader.parameters.memory[i];
    const Value& value = graph.values[static_cast<std::size_t>(graph.parameters[i].value)];
    memory.has_inputs_last = uses[i].convolution > 0;
    ACCORD_RETURN_IF_ERROR(uses[i].convolution > 0 ? loader.store_inputs_last(rows, value, name, memory)
                                                   : loader.store(rows, name, memory));
    loader.parameters.bytes.replicated += rows.size();
  }
  return std::move(loader.parameters);
}

}  // namespace accord::engine::gpu
