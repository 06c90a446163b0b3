// The encoder's graph says what it takes: dtypes and shapes are those of its inputs, the number of rows is that of the
// keys that it stores. Ids are compared with the table that they are looked up in, because a run that fails ends all
// requests.
#include "engine/serving/source_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"
#include "engine/runtime/inputs.hpp"

namespace accord::engine {
namespace {

constexpr std::string_view kEmbedding = "aten.embedding.default";

Status of_source(const Status& status) { return status.with_context("the source of the request"); }

std::string inputs_text(const Graph& graph) {
  std::string text;
  for (const ValueId id : graph.inputs) {
    const Value& input = graph.values[static_cast<std::size_t>(id)];
    text += fmt::format("{}\"{}\" ({} {})", text.empty() ? "" : ", ", input.name, to_string(input.dtype),
                        shape_text(input.shape));
  }
  return text;
}

Result<SymbolicInt> stored_rows(const Graph& graph) {
  const auto stores = std::ranges::find(graph.nodes, kCacheSource, &Node::op);
  const auto key = stores == graph.nodes.end() ? std::nullopt : tensor_argument(*stores, "key");
  if (!key) return Status(StatusCode::kCorrupt, "the encoder of the package stores no keys of a source");
  return graph.values[static_cast<std::size_t>(*key)].shape[2];
}

Result<SymbolicInt> output_rows(const Graph& graph) {
  if (graph.outputs.size() == 1) {
    const Value& rows = graph.values[static_cast<std::size_t>(graph.outputs[0])];
    if (rows.shape.size() == 2) return rows.shape[0];
  }
  return Status(StatusCode::kCorrupt, "the encoder of the package does not return rows");
}

// Returns, for each input of ids, the rows of the table that is read with it, directly or in another shape.
std::map<std::size_t, std::int64_t> tables_of(const LoadedEngine& encoder) {
  const Graph& graph = encoder.graph();
  std::map<ValueId, std::size_t> input_of;  // values that have an input's ids
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) input_of[graph.inputs[i]] = i;
  std::map<ValueId, std::string> tensor_of;
  for (const Parameter& parameter : graph.parameters) tensor_of[parameter.value] = parameter.tensor;
  std::map<std::size_t, std::int64_t> tables;
  for (const Node& node : graph.nodes) {
    const auto self = tensor_argument(node, "self");
    const bool reshapes = node.op == "aten.view.default" || node.op == "aten.unsqueeze.default";
    if (reshapes && self && input_of.contains(*self)) input_of[node.outputs.front()] = input_of[*self];
    if (node.op != kEmbedding) continue;
    const auto indices = tensor_argument(node, "indices"), weight = tensor_argument(node, "weight");
    if (!indices || !weight || !input_of.contains(*indices) || !tensor_of.contains(*weight)) continue;
    const std::string& name = tensor_of[*weight];
    for (const LoadedModel::TensorDescription& tensor : encoder.model().tensors) {
      if (tensor.name == name) tables[input_of[*indices]] = tensor.shape.front();
    }
  }
  return tables;
}

Status check_ids(const SourceTensor& ids, std::int64_t rows, const std::string& input) {
  const std::span numbers(reinterpret_cast<const std::int64_t*>(ids.data.data()),
                          ids.data.size() / sizeof(std::int64_t));
  const auto wrong = std::ranges::find_if(numbers, [&](std::int64_t id) { return id < 0 || id >= rows; });
  if (wrong == numbers.end()) return Status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("\"{}\" has the id {}, which is outside the encoder's {} ids", input, *wrong, rows));
}

}  // namespace

std::vector<TensorView> views_of(std::span<const SourceTensor> source) {
  std::vector<TensorView> views;
  for (const SourceTensor& tensor : source) {
    auto* const data = const_cast<std::byte*>(tensor.data.data());
    views.push_back({{data, tensor.data.size() / size_of(tensor.dtype), tensor.dtype, {}}, tensor.shape});
  }
  return views;
}

Result<SourceInputs> SourceInputs::create(std::shared_ptr<const LoadedEngine> encoder, bool is_cached) {
  SourceInputs inputs;
  const Graph& graph = encoder->graph();
  inputs.is_needed_ = is_cached;
  std::map<std::string, SymbolicInt::Range> ranges;
  for (const Symbol& symbol : graph.symbols) ranges[symbol.name] = {symbol.min, symbol.max};
  ACCORD_ASSIGN_OR_RETURN(inputs.source_rows_, is_cached ? stored_rows(graph) : output_rows(graph));
  ACCORD_ASSIGN_OR_RETURN(const SymbolicInt::Range rows, inputs.source_rows_.range(ranges));
  inputs.max_rows_ = static_cast<std::int32_t>(rows.max);
  inputs.tables_ = tables_of(*encoder);
  inputs.encoder_ = std::move(encoder);
  return inputs;
}

Result<std::int32_t> SourceInputs::rows(std::span<const SourceTensor> source) const {
  const Graph& graph = encoder_->graph();
  if (source.empty() && !is_needed_) return 0;
  if (source.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "the request has no source, but the model has an encoder, which takes " + inputs_text(graph));
  }
  const std::vector<TensorView> views = views_of(source);
  if (const Status fits = check_memory(graph, views, Device()); !fits.ok()) return of_source(fits);
  const Result<std::vector<std::int64_t>> symbols = match_inputs(graph, views);
  if (!symbols.ok()) return of_source(symbols.status());
  for (const auto& [input, rows] : tables_) {
    const std::string& name = graph.values[static_cast<std::size_t>(graph.inputs[input])].name;
    if (const Status known = check_ids(source[input], rows, name); !known.ok()) return of_source(known);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t rows, source_rows_.evaluate(symbol_values(graph, *symbols)));
  return static_cast<std::int32_t>(rows);
}

}  // namespace accord::engine
