// A sharded tensor lies in its file as units, each a row-major block. Units along dimension 0 follow each other as the
// tensor's own rows do; along another dimension they are woven together while they are copied out of the staging buffer.
// Weights of matrix products go from there into oneDNN's layout and nothing else of them stays.
#include "engine/runtime/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

bool is_linear(const Node& node) { return node.op == "aten.linear.default" || node.op == "accord.linear"; }
bool is_product(const Node& node) { return node.op == "aten.mm.default" || node.op == "aten.addmm.default"; }

std::size_t part_bytes(const TensorPart& part, DType dtype) {
  return std::accumulate(part.shape.begin(), part.shape.end(), size_of(dtype),
                         [](std::size_t bytes, std::int64_t size) { return bytes * static_cast<std::size_t>(size); });
}

// Memory that grows to the largest tensor and serves all of them in turn.
class Staging {
 public:
  Result<std::span<std::byte>> of(std::size_t bytes) {
    if (bytes > region_.size()) {
      region_ = Region();
      ACCORD_ASSIGN_OR_RETURN(region_, Region::allocate(bytes, "reading weights"));
    }
    return region_.bytes().first(bytes);
  }

 private:
  Region region_;
};

// `units` holds blocks [outer, unit * inner bytes] one after the other, the last one perhaps narrower; `destination`
// gets rows [outer, all units side by side].
void weave(std::span<const std::byte> units, std::size_t outer, std::size_t unit_row, std::size_t row,
           std::byte* destination) {
  std::size_t column = 0;
  const std::byte* source = units.data();
  while (column < row) {
    const std::size_t width = std::min(unit_row, row - column);
    for (std::size_t i = 0; i < outer; ++i) {
      std::memcpy(destination + i * row + column, source, width);
      source += width;
    }
    column += width;
  }
}

class Loader {
 public:
  Loader(Package& package, const Graph& graph, const std::vector<TensorPart>& parts)
      : package_(package), graph_(graph), parts_(parts) {}

  Result<Parameters> run() && {
    const std::vector<ParameterUse> uses = parameter_uses(graph_);
    Parameters parameters;
    parameters.memory.resize(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!uses[i].any()) continue;
      ACCORD_ASSIGN_OR_RETURN(const TensorEntry* entry, package_.tensor(parts_[i].tensor));
      ACCORD_RETURN_IF_ERROR(load(*entry, parts_[i], uses[i], parameters.memory[i]));
      (parts_[i].sharded ? parameters.bytes.sharded : parameters.bytes.replicated) +=
          part_bytes(parts_[i], entry->dtype);
    }
    return parameters;
  }

 private:
  Status load(const TensorEntry& entry, const TensorPart& part, const ParameterUse& use, ParameterMemory& memory) {
    const std::size_t bytes = part_bytes(part, entry.dtype);
    std::span<std::byte> rows;
    if (use.plain) {
      ACCORD_ASSIGN_OR_RETURN(memory.plain, Region::allocate(bytes, "tensor \"" + entry.name + "\""));
      rows = memory.plain.bytes();
    } else {
      ACCORD_ASSIGN_OR_RETURN(rows, rows_.of(bytes));
    }
    ACCORD_RETURN_IF_ERROR(read(entry, part, rows));
    if (use.linear) ACCORD_RETURN_IF_ERROR(pack_linear(entry, part, rows, memory));
    if (use.product) ACCORD_RETURN_IF_ERROR(pack_product(entry, part, rows, memory));
    return Status();
  }

  Status read(const TensorEntry& entry, const TensorPart& part, std::span<std::byte> rows) {
    if (!entry.sharding || entry.sharding->dim == 0) {
      return package_.read_granules(entry, part.first_granule, part.granules, rows);
    }
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> units, units_.of(rows.size()));
    ACCORD_RETURN_IF_ERROR(package_.read_granules(entry, part.first_granule, part.granules, units));
    const auto dim = static_cast<std::size_t>(entry.sharding->dim);
    std::size_t outer = 1;
    for (std::size_t i = 0; i < dim; ++i) outer *= static_cast<std::size_t>(part.shape[i]);
    std::size_t element = size_of(entry.dtype);
    for (std::size_t i = dim + 1; i < part.shape.size(); ++i) element *= static_cast<std::size_t>(part.shape[i]);
    weave(units, outer, static_cast<std::size_t>(entry.sharding->unit) * element,
          static_cast<std::size_t>(part.shape[dim]) * element, rows.data());
    return Status();
  }

  static Status check_matrix(const TensorEntry& entry, const TensorPart& part) {
    if (entry.dtype == DType::kFloat32 && part.shape.size() == 2) return Status();
    return Status(
        StatusCode::kUnsupported,
        fmt::format("tensor \"{}\": a matrix product takes float32 weights with two dimensions, not {} with {}",
                    entry.name, to_string(entry.dtype), part.shape.size()));
  }

  static Status pack_linear(const TensorEntry& entry, const TensorPart& part, std::span<const std::byte> rows,
                            ParameterMemory& memory) {
    ACCORD_RETURN_IF_ERROR(check_matrix(entry, part));
    ACCORD_ASSIGN_OR_RETURN(memory.linear, kernels::LinearWeights::pack(reinterpret_cast<const float*>(rows.data()),
                                                                        part.shape[0], part.shape[1]));
    return Status();
  }

  Status pack_product(const TensorEntry& entry, const TensorPart& part, std::span<const std::byte> rows,
                      ParameterMemory& memory) {
    ACCORD_RETURN_IF_ERROR(check_matrix(entry, part));
    const std::int64_t in = part.shape[0];
    const std::int64_t out = part.shape[1];
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> turned_bytes, units_.of(rows.size()));
    const auto* plain = reinterpret_cast<const float*>(rows.data());
    auto* turned = reinterpret_cast<float*>(turned_bytes.data());
    for (std::int64_t i = 0; i < in; ++i) {
      for (std::int64_t o = 0; o < out; ++o) turned[o * in + i] = plain[i * out + o];
    }
    ACCORD_ASSIGN_OR_RETURN(memory.product, kernels::LinearWeights::pack(turned, out, in));
    return Status();
  }

  Package& package_;
  const Graph& graph_;
  const std::vector<TensorPart>& parts_;
  Staging rows_;
  Staging units_;
};

}  // namespace

std::vector<ParameterUse> parameter_uses(const Graph& graph) {
  std::vector<ParameterUse> by_value(graph.values.size());
  for (const Node& node : graph.nodes) {
    const auto packed = is_linear(node)    ? tensor_argument(node, "weight")
                        : is_product(node) ? tensor_argument(node, "mat2")
                                           : std::nullopt;
    bool packed_seen = false;
    for_each_input(node, [&](ValueId id) {
      ParameterUse& use = by_value[static_cast<std::size_t>(id)];
      if (packed == id && !packed_seen) {
        (is_linear(node) ? use.linear : use.product) = true;
        packed_seen = true;
      } else {
        use.plain = true;
      }
    });
  }
  for (const ValueId output : graph.outputs) by_value[static_cast<std::size_t>(output)].plain = true;
  std::vector<ParameterUse> uses;
  for (const Parameter& parameter : graph.parameters)
    uses.push_back(by_value[static_cast<std::size_t>(parameter.value)]);
  return uses;
}

Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts) {
  return Loader(package, graph, parts).run();
}

}  // namespace accord::engine
