#pragma once
// A rank's weights in device memory.

#include "engine/gpu/context.hpp"
#include "engine/program/parameters.hpp"

namespace accord::engine {

/// Whether float8 weights may stay float8.
enum class Float8Weights : std::uint8_t { kStay, kUnpacked };

/// Returns the bytes that load_parameters_on() uses on the device. Packed weights that do not stay float8 count with
/// their unpacked size.
std::uint64_t planned_bytes_on_device(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                      Float8Weights float8);

/// Reads and checks the granules of `parts` (one part for each of the graph's parameters) that the graph uses, tensor
/// by tensor, and copies each tensor to the device, row-major and in the dtype that the graph states. At most one
/// tensor of the package is in CPU memory at a time.
///
/// Packed weights are unpacked. Weights of 8 and 4 bits are rounded to that dtype, so they use as much device memory
/// as if they had never been quantized. Float8 weights of linear layers and of experts, and tables that are also the
/// weight of a layer, stay float8 with their scales if `float8` permits it. Small weights stay on the CPU as well.
/// Weights of convolutions are stored with their inputs last.
///
/// Errors as for load_parameters(); kCorrupt if parts of one output have different scales.
Result<Parameters> load_parameters_on(const EngineDevice& on, Package& package, const Graph& graph,
                                      const std::vector<TensorPart>& parts, Float8Weights float8);

/// Same for weights in CPU memory, which are copied. Errors as for take_parameters().
Result<Parameters> take_parameters_on(const EngineDevice& on, const Graph& graph,
                                      const std::map<std::string, TensorView>& weights);

/// Returns the layout of a weight [out, in, ..] that convolutions read: in memory it is [out, .., in].
kernels::Layout inputs_last_layout(std::span<const std::int64_t> sizes);

/// Weights of up to this many bytes are kept on the CPU as well, for values that are computed from them when a
/// program is prepared.
inline constexpr std::size_t kKnownBytes = std::size_t{64} << 10;

}  // namespace accord::engine
