#pragma once
// A rank's weights in device memory.

#include "engine/gpu/engine_device.hpp"
#include "engine/program/parameters.hpp"

namespace accord::engine::gpu {

/// Returns the bytes that load_parameters() uses on the device. Packed weights that do not stay float8 count with
/// their unpacked size.
std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                            bool keeps_float8);

/// Reads and checks the granules of `parts` (one part for each of the graph's parameters) that the graph uses, tensor
/// by tensor, and copies each tensor to the device, row-major and in the dtype that the graph states. At most one
/// tensor of the package is in CPU memory at a time.
///
/// Packed weights are unpacked. Weights of 8 and 4 bits are rounded to that dtype, so they use as much device memory
/// as if they had never been quantized. Float8 weights of linear layers and of experts, and tables that are also the
/// weight of a layer, stay float8 with their scales if `keeps_float8`. Small weights stay on the CPU as well.
/// Weights of convolutions are stored with their inputs last.
///
/// Errors as for load_parameters(); kCorrupt if parts of one output have different scales.
Result<Parameters> load_parameters(const EngineDevice& on, Package& package, const Graph& graph,
                                   const std::vector<TensorPart>& parts, bool keeps_float8);

/// Same for weights in CPU memory, which are copied. Errors as for reference_parameters().
Result<Parameters> reference_parameters(const EngineDevice& on, const Graph& graph,
                                        const std::map<std::string, TensorView>& weights);

/// Weights of up to this many bytes are kept on the CPU as well, for values that are computed from them when a
/// program is prepared.
inline constexpr std::size_t kKnownBytes = std::size_t{64} << 10;

}  // namespace accord::engine::gpu
