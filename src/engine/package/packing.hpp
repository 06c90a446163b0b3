#pragma once
// "packed" of a tensor in the manifest.

#include <cstdint>
#include <string_view>

#include "engine/graph/strict_json.hpp"
#include "engine/package/package.hpp"

namespace accord::engine {

/// Where packed tensors and their units begin in a file, and so in memory: vectors are loaded from there.
inline constexpr std::uint64_t kPackedAlignment = 64;

/// "int8", as the manifest has it.
std::string_view packing_type_name(kernels::WeightType type);

/// Reads "packed" of `object`, which describes `tensor`, whose dtype, shape and sharding are read already. kCorrupt if there is no
/// such format, or if a tensor of that kind cannot be packed.
Result<Packing> read_packing(const JsonObject& object, const TensorEntry& tensor);

}  // namespace accord::engine
