#pragma once
// Parses "packed" of a tensor in the manifest.

#include <cstdint>
#include <string_view>

#include "engine/graph/strict_json.hpp"
#include "engine/package/package.hpp"

namespace accord::engine {

/// Alignment of packed tensors and their units in a file, and so in memory, where vector loads read them. Bytes.
inline constexpr std::uint64_t kPackedAlignment = 64;

/// Returns the name that the manifest uses, such as "int8".
std::string_view packing_type_name(kernels::WeightType type);

/// Parses "packed" of `object`, which describes `tensor`. REQUIRES: dtype, shape and sharding of `tensor` are set.
/// Fails with kCorrupt if the format does not exist or if a tensor of this kind cannot be packed.
Result<Packing> read_packing(const JsonObject& object, const TensorEntry& tensor);

}  // namespace accord::engine
