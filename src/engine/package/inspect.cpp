// Describes a package from its manifest and graph alone; no weight is read. The bytes of a rank are counted as loading
// would read them: all granules of undivided tensors, and the rank's own units of divided ones.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "accord/package.hpp"
#include "engine/package/package.hpp"
#include "engine/package/packing.hpp"
#include "engine/package/program_look.hpp"

namespace accord {
namespace {

using Json = nlohmann::ordered_json;

Json value_json(const engine::Graph& graph, engine::ValueId id) {
  const engine::Value& value = graph.values[static_cast<std::size_t>(id)];
  Json shape = Json::array();
  for (const engine::SymbolicInt& dimension : value.shape) {
    if (dimension.is_constant()) {
      shape.push_back(dimension.constant());
    } else {
      shape.push_back(dimension.to_string());
    }
  }
  return {{"name", value.name}, {"dtype", to_string(value.dtype)}, {"shape", std::move(shape)}};
}

Json values_json(const engine::Graph& graph, const std::vector<engine::ValueId>& ids) {
  Json list = Json::array();
  for (const engine::ValueId id : ids) list.push_back(value_json(graph, id));
  return list;
}

std::int64_t units_of(const engine::TensorEntry& tensor) {
  return static_cast<std::int64_t>(tensor.granule_xxh3.size());
}

// Returns how many ranks a group may have: the smallest number of units of any divided tensor without copies. nullopt
// if nothing is divided.
std::optional<std::int64_t> max_ranks(const engine::Manifest& manifest) {
  std::optional<std::int64_t> max;
  for (const engine::TensorEntry& tensor : manifest.tensors) {
    if (tensor.sharding.has_value() && !tensor.sharding->copies)
      max = std::min(max.value_or(units_of(tensor)), units_of(tensor));
  }
  return max;
}

// Returns the weight bytes that the first of `size` ranks reads, which are the most of all ranks. nullopt if the ranks
// cannot share the tensors.
std::optional<std::uint64_t> bytes_of_first_rank(const engine::Manifest& manifest, int size) {
  std::uint64_t bytes = 0;
  for (const engine::TensorEntry& tensor : manifest.tensors) {
    if (!tensor.sharding) {
      bytes += tensor.bytes();
      continue;
    }
    const auto units = engine::units_of_rank(*tensor.sharding, units_of(tensor), 0, size);
    if (!units) return std::nullopt;
    bytes += tensor.granule_range_bytes(0, static_cast<std::uint64_t>(units->count));
  }
  return bytes;
}

// The error that quantization caused in each tensor, as measured by the exporter.
Json quantized_json(const engine::Manifest& manifest) {
  Json list = Json::array();
  for (const engine::TensorEntry& tensor : manifest.tensors) {
    if (!tensor.packing || !tensor.packing->format.rounded()) continue;
    const kernels::PackedFormat& format = tensor.packing->format;
    list.push_back({{"tensor", tensor.name},
                    {"type", engine::packing_type_name(format.type)},
                    {"group", format.group},
                    {"minima", format.minimum == kernels::Minimum::kPerGroup},
                    {"error", tensor.packing->error ? Json(*tensor.packing->error) : Json()}});
  }
  return list;
}

// Checkpoint files in which weights were left.
Json references_json(const engine::Manifest& manifest) {
  Json list = Json::array();
  for (const engine::WeightFileEntry& file : manifest.weight_files) {
    if (file.reference) list.push_back(*file.reference);
  }
  return list;
}

Json rules_json(const engine::Manifest& manifest) {
  Json rules = Json::array();
  for (const engine::ShardingRule& rule : manifest.rules) {
    rules.push_back({{"pattern", rule.pattern},
                     {"style", engine::kStyles[static_cast<std::size_t>(rule.style)]},
                     {"unit", rule.unit},
                     {"group", rule.group},
                     {"together", rule.together},
                     {"copies", rule.copies}});
  }
  return rules;
}

Json ranks_json(const engine::Manifest& manifest) {
  Json ranks = Json::array();
  for (const int size : {1, 2, 4, 8}) {
    Json bytes;  // null if loading rejects this number of ranks
    if (const auto first = bytes_of_first_rank(manifest, size)) bytes = *first;
    ranks.push_back({{"ranks", size}, {"weight_bytes_of_rank_0", bytes}});
  }
  return ranks;
}

Json package_json(const engine::Package& package) {
  const engine::Manifest& manifest = package.manifest();
  const engine::Graph& graph = package.graph();
  Json symbols = Json::array();
  for (const engine::Symbol& symbol : graph.symbols) {
    symbols.push_back({{"name", symbol.name}, {"min", symbol.min}, {"max", symbol.max}});
  }
  std::map<std::string, int> op_counts;
  for (const engine::Node& node : graph.nodes) ++op_counts[node.op];
  std::uint64_t bytes = 0;
  std::uint64_t sharded_bytes = 0;
  for (const engine::TensorEntry& tensor : manifest.tensors) {
    bytes += tensor.bytes();
    if (tensor.sharding.has_value()) sharded_bytes += tensor.bytes();
  }
  const std::optional<std::int64_t> max = max_ranks(manifest);
  return {{"package", package.path()},
          {"format_version", manifest.format_version},
          {"producer", manifest.producer},
          {"sha256", manifest.sha256},
          {"inputs", values_json(graph, graph.inputs)},
          {"outputs", values_json(graph, graph.outputs)},
          {"symbols", std::move(symbols)},
          {"groups", manifest.groups},
          {"rules", rules_json(manifest)},
          {"ops", op_counts},
          {"tensors", manifest.tensors.size()},
          {"weight_bytes", bytes},
          {"sharded_bytes", sharded_bytes},
          {"quantized", quantized_json(manifest)},
          {"references", references_json(manifest)},
          {"adapters", manifest.language_model ? Json(manifest.language_model->adapters) : Json::array()},
          {"most_ranks", max ? Json(*max) : Json()},
          {"by_ranks", ranks_json(manifest)}};
}

}  // namespace

Result<std::string> inspect_package(const std::string& path) {
  const auto text_of = [](const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); };
  ACCORD_ASSIGN_OR_RETURN(const auto folder, engine::PackageFolder::open(path));
  ACCORD_ASSIGN_OR_RETURN(const auto program, engine::find_program(folder));
  if (program) return text_of(engine::program_json(path, *program));
  ACCORD_ASSIGN_OR_RETURN(const engine::Package package, engine::Package::open(path));
  return text_of(package_json(package));
}

}  // namespace accord
