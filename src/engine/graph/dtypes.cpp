// Python has a copy of this list (python/accord/graph/builder.py).
#include "engine/graph/dtypes.hpp"

#include <algorithm>
#include <array>

#include "base/text.hpp"

namespace accord::engine {
namespace {

constexpr std::array kDTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32,
                                DType::kInt64,   DType::kBool,    DType::kUInt8};

}  // namespace

Result<DType> engine_dtype_from_string(std::string_view name) {
  std::array<std::string_view, kDTypes.size()> names;
  std::transform(kDTypes.begin(), kDTypes.end(), names.begin(), [](DType dtype) { return to_string(dtype); });
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return unknown_name("dtype", name, names);
  return kDTypes[static_cast<std::size_t>(found - names.begin())];
}

}  // namespace accord::engine
