// The layout of a tensor in its file, from its manifest entry. A packed unit is one block of the grid that products
// read, and units begin at multiples of 64 bytes. Units along `in` of a divided weight are side by side in that grid.
// A unit of experts has such a block for each expert, one after the other. A convolution's weight is one unit, with a
// block for each group.

#include "engine/package/packing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <numeric>

#include "base/rounding.hpp"
#include "base/text.hpp"
#include "kernels/view.hpp"

namespace accord::engine {
namespace {

constexpr std::string_view kTypes[] = {"float32", "bfloat16", "float16", "int8",         "int6",
                                       "int5",    "int4",     "table4",  "float8_e4m3fn"};  // by WeightType

bool is_of_experts(const TensorEntry& tensor) {
  return tensor.shape.size() == 3 && (!tensor.packing || tensor.packing->groups == 0);
}

bool has_expert_units(const TensorEntry& tensor) {
  return is_of_experts(tensor) && tensor.sharding && tensor.sharding->dim == 0;
}

// One unit of a matrix, or of each expert's matrix, as [out, in], and whether the matrix is divided along its outputs.
struct Block {
  std::int64_t out = 0, in = 0;
  bool by_outputs = true;
};

Block block_of(const TensorEntry& tensor) {
  if (const std::int64_t groups = tensor.packing->groups; groups > 0) {
    const auto inputs =
        std::accumulate(tensor.shape.begin() + 1, tensor.shape.end(), std::int64_t{1}, std::multiplies());
    return {tensor.shape[0] / groups, inputs};
  }
  const std::size_t last = tensor.shape.size() - 1;
  const std::size_t out_dim = tensor.packing->transposed ? last : last - 1;
  const std::size_t in_dim = tensor.packing->transposed ? last - 1 : last;
  Block block{tensor.shape[out_dim], tensor.shape[in_dim]};
  if (!tensor.sharding || has_expert_units(tensor)) return block;
  block.by_outputs = static_cast<std::size_t>(tensor.sharding->dim) == out_dim;
  (block.by_outputs ? block.out : block.in) = tensor.sharding->unit;
  return block;
}

Result<std::array<float, 16>> read_table(const JsonObject& packed) {
  std::array<float, 16> table{};
  ACCORD_ASSIGN_OR_RETURN(const auto* const numbers, packed.array("table", table.size()));
  const auto is_number = [](const nlohmann::json& one) { return one.is_number(); };
  if (numbers->size() != table.size() || !std::all_of(numbers->begin(), numbers->end(), is_number)) {
    return packed.corrupt("table is not 16 numbers");
  }
  std::transform(numbers->begin(), numbers->end(), table.begin(),
                 [](const auto& one) { return one.template get<float>(); });
  return table;
}

// Returns false if the units of a float8 weight, which devices place side by side, would begin inside a group of
// inputs.
bool units_align_with_groups(const TensorEntry& tensor, const Packing& packing) {
  if (packing.format.type != kernels::WeightType::kFloat8 || packing.format.group == 0 || !tensor.sharding) return true;
  const std::size_t in_dim = tensor.shape.size() - (packing.transposed ? 2 : 1);
  return static_cast<std::size_t>(tensor.sharding->dim) != in_dim || tensor.sharding->unit % packing.format.group == 0;
}

}  // namespace

std::int64_t TensorEntry::units() const {
  if (!sharding) return 1;
  const std::int64_t size = shape[static_cast<std::size_t>(sharding->dim)];
  return (size + sharding->unit - 1) / sharding->unit;
}

std::uint64_t TensorEntry::unit_bytes() const {
  if (packing) return matrix_bytes() * static_cast<std::uint64_t>(matrices());
  std::uint64_t bytes = size_of(dtype);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const bool cut = sharding && static_cast<std::size_t>(sharding->dim) == dim;
    bytes *= static_cast<std::uint64_t>(cut ? sharding->unit : shape[dim]);
  }
  return bytes;
}

std::int64_t TensorEntry::matrices() const {
  if (has_expert_units(*this)) return sharding->unit;
  return is_of_experts(*this) ? shape[0] : std::max<std::int64_t>(packing->groups, 1);
}

std::uint64_t TensorEntry::matrix_bytes() const {
  const Block block = block_of(*this);
  return round_up(kernels::packed_bytes(packing->format, block.out, block.in), kPackedAlignment);
}

std::uint64_t TensorEntry::bytes() const {
  if (packing) return unit_bytes() * static_cast<std::uint64_t>(units());
  std::uint64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

std::uint64_t TensorEntry::granule_range_bytes(std::uint64_t first, std::uint64_t count) const {
  const std::uint64_t begin = first * granule_bytes;
  return std::min(count * granule_bytes, bytes() - begin);
}

kernels::PackedMatrix TensorEntry::matrix(std::int64_t first, std::int64_t count, const std::byte* data) const {
  const Block block = block_of(*this);
  kernels::PackedMatrix matrix = kernels::packed_matrix(packing->format, block.out, block.in, data);
  if (!sharding || has_expert_units(*this)) return matrix;
  const std::int64_t size = shape[static_cast<std::size_t>(sharding->dim)];
  const std::int64_t padding = std::max<std::int64_t>((first + count) * sharding->unit - size, 0);
  const auto stride = static_cast<std::int64_t>(unit_bytes());
  (block.by_outputs ? matrix.out_units : matrix.in_units) = count;
  (block.by_outputs ? matrix.out_unit_stride : matrix.in_unit_stride) = stride;
  (block.by_outputs ? matrix.out_padding : matrix.in_padding) = padding;
  return matrix;
}

std::string_view packing_type_name(kernels::WeightType type) { return kTypes[static_cast<std::size_t>(type)]; }

Result<Packing> read_packing(const JsonObject& object, const TensorEntry& tensor) {
  static constexpr std::array<std::string_view, 1> kKeys = {"type"};
  static constexpr std::array<std::string_view, 7> kOptional = {"group",  "scales", "minima", "transposed",
                                                                "groups", "error",  "table"};
  ACCORD_ASSIGN_OR_RETURN(const auto given,
                          JsonObject::read(object.at("packed"), object.where() + ": packed", kKeys, kOptional));
  Packing packing;
  if (given.has("groups")) {
    const Status wrong = given.corrupt(
        "groups need the weight of a convolution, [out, in, ..], with a multiple of that many outputs, without "
        "sharding");
    if (tensor.shape.size() < 3 || tensor.sharding) return wrong;
    ACCORD_ASSIGN_OR_RETURN(packing.groups, given.integer("groups", 1, tensor.shape.front()));
    if (tensor.shape.front() % packing.groups != 0) return wrong;
  }
  const bool of_experts = tensor.shape.size() == 3 && packing.groups == 0;
  if ((tensor.shape.size() != 2 && !of_experts && packing.groups == 0) || !kernels::is_real(tensor.dtype)) {
    return given.corrupt("only matrices of real numbers, those of experts, and convolutions with groups are packed");
  }
  if (of_experts && tensor.sharding && tensor.sharding->dim == 0 && tensor.sharding->unit != 1) {
    return given.corrupt("packed experts are divided one by one, or within each expert");
  }
  ACCORD_ASSIGN_OR_RETURN(const auto type, given.name("type"));
  const auto* const known = std::find(std::begin(kTypes), std::end(kTypes), type);
  if (known == std::end(kTypes)) return given.corrupt(unknown_name("type", type, kTypes).message());
  packing.format.type = static_cast<kernels::WeightType>(known - std::begin(kTypes));
  if (packing.format.type == kernels::WeightType::kFloat8) {
    if (packing.groups > 0) return given.corrupt("weights of convolutions are not packed as float8_e4m3fn");
    packing.format.scale_type = DType::kFloat32;
  }
  if (given.has("group")) {
    ACCORD_ASSIGN_OR_RETURN(const auto group, given.integer("group", 1, 1024));
    packing.format.group = static_cast<int>(group);
  }
  if (given.has("scales")) {
    ACCORD_ASSIGN_OR_RETURN(const auto scales, given.name("scales"));
    packing.format.scale_type = scales == "float32" ? DType::kFloat32
                                : scales == "int8"  ? DType::kInt8
                                                    : DType::kFloat16;
    if (scales != to_string(packing.format.scale_type)) {
      return given.corrupt("scales are \"float16\", \"float32\" or \"int8\"");
    }
  }
  const auto flag = [&](std::string_view name) -> Result<bool> {
    if (!given.has(name)) return false;
    if (!given.at(name).is_boolean()) return given.corrupt(fmt::format("{} is neither true nor false", name));
    return given.at(name).get<bool>();
  };
  ACCORD_ASSIGN_OR_RETURN(const bool minima, flag("minima"));
  packing.format.minimum = minima ? kernels::Minimum::kPerGroup : kernels::Minimum::kNone;
  ACCORD_ASSIGN_OR_RETURN(packing.transposed, flag("transposed"));
  if (packing.transposed && tensor.shape.size() != 2) return given.corrupt("only matrices are packed transposed");
  if (given.has("table") != (packing.format.type == kernels::WeightType::kTable4)) {
    return given.corrupt("a table belongs to weights of type table4, which need one");
  }
  if (given.has("table")) {
    ACCORD_ASSIGN_OR_RETURN(packing.format.table, read_table(given));
  }
  if (given.has("error")) {
    if (!given.at("error").is_number()) return given.corrupt("error is not a number");
    packing.error = given.at("error").get<double>();
  }
  if (const Status status = kernels::check(packing.format); !status.ok()) return given.corrupt(status.message());
  if (!units_align_with_groups(tensor, packing)) {
    return given.corrupt(fmt::format("units of {} inputs are not a multiple of groups of {}, as float8_e4m3fn requires",
                                     tensor.sharding->unit, packing.format.group));
  }
  return packing;
}

}  // namespace accord::engine
