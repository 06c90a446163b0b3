#pragma once
// A rank's weights in memory of a device.

#include "engine/device/device_context.hpp"
#include "engine/runtime/parameters.hpp"

namespace accord::engine {

/// Whether weights of float8 may stay that.
enum class Float8Weights : std::uint8_t { kStay, kUnpacked };

/// Bytes that load_parameters_on() takes on the device: packed weights that do not stay float8 count as what they become.
std::uint64_t planned_bytes_on_device(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                      Float8Weights float8);

/// Reads and checks the granules of `parts` (one for each of the graph's parameters) that the graph uses, tensor by tensor, and copies each,
/// row-major and in the dtype that the graph says, to the device: no more than one tensor of the package is in memory of the CPU at a
/// time. Packed weights are unpacked, those of 8 and 4 bits rounded to that dtype, so they take as much memory there as if they had never been
/// quantized; but float8 of linear layers and experts, and tables that are a layer's weight too, stay that with their scales if they may. Small ones stay on the CPU as well. Errors as of load_parameters(), kCorrupt where parts of an output have different scales. Weights of convolutions lie there with their inputs last.
Result<Parameters> load_parameters_on(const EngineDevice& on, Package& package, const Graph& graph,
                                      const std::vector<TensorPart>& parts, Float8Weights float8);

/// The same for weights that are in memory of the CPU, which are copied. Errors as of take_parameters().
Result<Parameters> take_parameters_on(const EngineDevice& on, const Graph& graph,
                                      const std::map<std::string, TensorView>& weights);

/// Of a weight [out, in, ..] that convolutions read: its memory is [out, .., in].
kernels::Layout inputs_last_layout(std::span<const std::int64_t> sizes);

/// Weights that large are known on the CPU as well, for what is computed of them when a program is prepared.
inline constexpr std::size_t kKnownBytes = std::size_t{64} << 10;

}  // namespace accord::engine
