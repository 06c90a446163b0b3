#include "engine/program/batch.hpp"

#include <fmt/format.h>

#include <map>

#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 31;

/// The heads of a key or value.
struct Heads {
  std::int64_t heads, dim;
  DType dtype;
};

// Returns the tensor of an argument that must be there.
Result<const Value*> value_of(const Graph& graph, const Node& node, std::string_view argument) {
  const auto id = tensor_argument(node, argument);
  if (!id)
    return Status(StatusCode::kCorrupt, fmt::format("{}: argument \"{}\" is missing", node_text(node), argument));
  return &graph.values[static_cast<std::size_t>(*id)];
}

// Reads the heads of a tensor [1, heads, rows, dim].
Result<Heads> heads_of(const Graph& graph, const Node& node, std::string_view argument) {
  ACCORD_ASSIGN_OR_RETURN(const Value* const value, value_of(graph, node, argument));
  const SymbolicShape& shape = value->shape;
  if (shape.size() != 4 || !shape[1].is_constant() || !shape[3].is_constant()) {
    return Status(StatusCode::kUnsupported, fmt::format("{}: its {} is {}, not [1, heads, tokens, dim] with constant "
                                                        "heads and dim",
                                                        node_text(node), argument, shape_text(shape)));
  }
  return Heads{shape[1].constant(), shape[3].constant(), value->dtype};
}

Result<std::int64_t> constant_size(const Graph& graph, const Node& node, std::string_view argument, std::size_t dim) {
  ACCORD_ASSIGN_OR_RETURN(const Value* const value, value_of(graph, node, argument));
  const SymbolicShape& shape = value->shape;
  if (dim < shape.size() && shape[dim].is_constant()) return shape[dim].constant();
  return Status(StatusCode::kUnsupported, fmt::format("{}: its {} is {}, whose size {} is no constant", node_text(node),
                                                      argument, shape_text(shape), dim));
}

}  // namespace

Result<std::vector<CachedLayer>> cached_layers(const Graph& graph) {
  std::vector<CachedLayer> layers;
  std::map<std::int64_t, const Node*> node_of_layer;
  for (const Node& node : graph.nodes) {
    if (node.op != kCachedAttention && node.op != kCacheSource) continue;
    CachedLayer layer;
    ACCORD_ASSIGN_OR_RETURN(layer.layer, integer_argument(node, "layer"));
    ACCORD_ASSIGN_OR_RETURN(const Heads keys, heads_of(graph, node, "key"));
    Heads values = keys;
    if (tensor_argument(node, "value")) {
      ACCORD_ASSIGN_OR_RETURN(values, heads_of(graph, node, "value"));
    } else {
      ACCORD_ASSIGN_OR_RETURN(values.dim, integer_argument(node, "value_dim"));
      layer.value_place = kernels::ValuePlace::kInKeys;
    }
    const auto [other, is_new] = node_of_layer.emplace(layer.layer, &node);
    if (!is_new) {
      return Status(StatusCode::kCorrupt, fmt::format("{} and {} are both attention layer {}", node_text(node),
                                                      node_text(*other->second), layer.layer));
    }
    if (values.heads != keys.heads) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: {} key heads, but {} value heads", node_text(node), keys.heads, values.heads));
    }
    layer.kv_heads = keys.heads;
    layer.head_dim = keys.dim;
    layer.value_dim = values.dim;
    if (keys.dtype == DType::kBFloat16 && values.dtype == DType::kBFloat16) layer.dtype = DType::kBFloat16;
    layers.push_back(layer);
  }
  return layers;
}

Result<std::vector<CachedState>> cached_states(const Graph& graph) {
  std::vector<CachedState> states;
  std::map<std::int64_t, const Node*> node_of_state;
  for (const Node& node : graph.nodes) {
    if (!keeps_state(node.op)) continue;
    CachedState state;
    ACCORD_ASSIGN_OR_RETURN(state.state, integer_argument(node, "state"));
    if (node.op == kWkv) {  // key: [tokens, channels]
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t channels, constant_size(graph, node, "key", 1));
      state.floats = kWkvStateRows * channels;
    } else if (node.op == kCausalConvolution) {  // weight: [channels, taps]
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t channels, constant_size(graph, node, "weight", 0));
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t taps, constant_size(graph, node, "weight", 1));
      state.floats = channels * (taps - 1);
    } else {  // key: [tokens, key heads, key size], value: [tokens, heads, value size]
      state.floats = 1;
      for (const auto& [argument, dim] : {std::pair{"key", 2}, {"value", 1}, {"value", 2}}) {
        ACCORD_ASSIGN_OR_RETURN(const std::int64_t size, constant_size(graph, node, argument, dim));
        state.floats *= size;
      }
    }
    const auto [other, is_new] = node_of_state.emplace(state.state, &node);
    if (!is_new) {
      return Status(StatusCode::kCorrupt, fmt::format("{} and {} both have state {}", node_text(node),
                                                      node_text(*other->second), state.state));
    }
    states.push_back(state);
  }
  return states;
}

Result<CachedParts> cached_parts(const Graph& graph) {
  CachedParts parts;
  ACCORD_ASSIGN_OR_RETURN(parts.layers, cached_layers(graph));
  ACCORD_ASSIGN_OR_RETURN(parts.states, cached_states(graph));
  return parts;
}

Status check(const KeyValueCacheOptions& options) {
  if (options.blocks < 1 || options.blocks >= kMaxBlocks) {
    return Status(StatusCode::kInvalidArgument, fmt::format("a cache cannot have {} blocks", options.blocks));
  }
  if (options.block_tokens < 1 || options.block_tokens % kernels::kTokenGroup != 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a block of the cache holds {} tokens, which is not a multiple of {}",
                              options.block_tokens, kernels::kTokenGroup));
  }
  if (options.dtype != DType::kFloat32 && options.dtype != DType::kBFloat16 && options.dtype != DType::kInt8) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("a cache stores float32, bfloat16 or int8, not {}", to_string(options.dtype)));
  }
  return Status();
}

Status check(std::span<const BatchRows> batch, std::int64_t rows, const KeyValueCacheOptions& options) {
  const auto sequence_error = [](std::size_t index, const std::string& what) {
    return Status(StatusCode::kInvalidArgument, fmt::format("sequence {} of the batch {}", index, what));
  };
  std::int64_t next = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const kernels::SequenceRows& sequence = batch[i].rows;
    if (batch[i].first_row != next)
      return sequence_error(i, fmt::format("begins at row {}, not {}", batch[i].first_row, next));
    if (sequence.rows < 1 || sequence.context < 0) {
      return sequence_error(i, fmt::format("has {} rows after {} tokens", sequence.rows, sequence.context));
    }
    next += sequence.rows;
    const auto capacity = [&](std::span<const std::int32_t> blocks) {
      return static_cast<std::int64_t>(blocks.size()) * options.block_tokens;
    };
    if (sequence.context + sequence.rows > capacity(sequence.blocks)) {
      return sequence_error(i, fmt::format("has {} tokens, but blocks for {}", sequence.context + sequence.rows,
                                           capacity(sequence.blocks)));
    }
    if (batch[i].source_rows < 0 || batch[i].source_rows > capacity(batch[i].source_blocks)) {
      return sequence_error(i, fmt::format("has a source of {} rows, but blocks for {}", batch[i].source_rows,
                                           capacity(batch[i].source_blocks)));
    }
    for (const auto& blocks : {sequence.blocks, batch[i].source_blocks}) {
      for (const std::int32_t block : blocks) {
        if (block < 0 || block >= options.blocks)
          return sequence_error(i, fmt::format("uses block {}, but the cache has {} blocks", block, options.blocks));
      }
    }
  }
  if (next == rows) return Status();
  return Status(StatusCode::kInvalidArgument, fmt::format("the batch has {} rows, but its inputs have {}", next, rows));
}

}  // namespace accord::engine
