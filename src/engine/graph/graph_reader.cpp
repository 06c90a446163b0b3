// graph.json -> Graph. The document is read once, in the order in which the graph runs: symbols, inputs, parameters,
// then node by node. A name can be used only after it was produced, which rules out cycles. Each size is bounded over
// all values of its symbols, so that none is below 1 or above the limits.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.hpp"
#include "engine/graph/derived_size.hpp"
#include "engine/graph/dtypes.hpp"
#include "engine/graph/graph.hpp"
#include "engine/graph/strict_json.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxGraphBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxSymbols = 64;
constexpr std::size_t kMaxNodes = 1'000'000;
constexpr std::size_t kMaxValues = 4'000'000;
constexpr std::size_t kMaxListItems = 4096;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;         // of one dimension
constexpr std::int64_t kMaxTensorBytes = std::int64_t{1} << 46;  // 64 TiB
constexpr std::size_t kMaxSizeText = 1024;

bool is_identifier(std::string_view name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  return !name.empty() && letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || digit(c); });
}

class Reader {
 public:
  Result<Graph> read(const json& document) {
    static constexpr std::array<std::string_view, 5> kKeys = {"symbols", "inputs", "parameters", "nodes", "outputs"};
    ACCORD_ASSIGN_OR_RETURN(const auto top, JsonObject::read(document, "graph.json", kKeys));
    ACCORD_RETURN_IF_ERROR(read_symbols(top));
    ACCORD_RETURN_IF_ERROR(read_inputs(top));
    ACCORD_RETURN_IF_ERROR(read_parameters(top));
    ACCORD_ASSIGN_OR_RETURN(const auto* nodes, top.array("nodes", kMaxNodes));
    record_producers(*nodes);
    graph_.nodes.reserve(nodes->size());
    for (const auto& node : *nodes) ACCORD_RETURN_IF_ERROR(read_node(node));
    ACCORD_RETURN_IF_ERROR(read_outputs(top));
    return std::move(graph_);
  }

 private:
  Status read_symbols(const JsonObject& top) {
    static constexpr std::array<std::string_view, 3> kKeys = {"name", "min", "max"};
    ACCORD_ASSIGN_OR_RETURN(const auto* symbols, top.array("symbols", kMaxSymbols));
    for (const auto& item : *symbols) {
      const auto where = fmt::format("graph.json: symbol {}", graph_.symbols.size());
      ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys));
      Symbol symbol;
      ACCORD_ASSIGN_OR_RETURN(symbol.name, object.name("name"));
      ACCORD_ASSIGN_OR_RETURN(symbol.min, object.integer("min", 1, kMaxSize));
      ACCORD_ASSIGN_OR_RETURN(symbol.max, object.integer("max", symbol.min, kMaxSize));
      if (!is_identifier(symbol.name)) return object.corrupt(fmt::format("\"{}\" is not an identifier", symbol.name));
      if (!ranges_.emplace(symbol.name, SymbolicInt::Range{symbol.min, symbol.max}).second) {
        return object.corrupt(fmt::format("there are two symbols \"{}\"", symbol.name));
      }
      graph_.symbols.push_back(std::move(symbol));
    }
    return {};
  }

  Status read_inputs(const JsonObject& top) {
    ACCORD_ASSIGN_OR_RETURN(const auto* inputs, top.array("inputs", kMaxListItems));
    std::set<std::string> sized;
    for (const auto& item : *inputs) {
      const auto where = fmt::format("graph.json: input {}", graph_.inputs.size());
      ACCORD_ASSIGN_OR_RETURN(const auto id, read_value(item, where));
      graph_.inputs.push_back(id);
      for (const auto& size : graph_.values[static_cast<std::size_t>(id)].shape) {
        if (auto derived = derived_size(size)) sized.insert(std::move(derived->symbol));
      }
    }
    for (const auto& symbol : graph_.symbols) {
      if (!sized.contains(symbol.name)) {
        return top.corrupt(
            fmt::format("symbol \"{}\" is not a dimension of any input, so nothing determines its value", symbol.name));
      }
    }
    return {};
  }

  Status read_parameters(const JsonObject& top) {
    static constexpr std::array<std::string_view, 1> kMore = {"tensor"};
    ACCORD_ASSIGN_OR_RETURN(const auto* parameters, top.array("parameters", kMaxValues));
    for (const auto& item : *parameters) {
      const auto where = fmt::format("graph.json: parameter {}", graph_.parameters.size());
      Parameter parameter;
      ACCORD_ASSIGN_OR_RETURN(parameter.value, read_value(item, where, kMore));
      const auto& value = graph_.values[static_cast<std::size_t>(parameter.value)];
      const bool fixed = std::all_of(value.shape.begin(), value.shape.end(),
                                     [](const SymbolicInt& size) { return size.is_constant(); });
      if (!fixed) return corrupt_at(where, fmt::format("\"{}\" has a shape that depends on symbols", value.name));
      ACCORD_ASSIGN_OR_RETURN(parameter.tensor,
                              read_text(item.at("tensor"), fmt::format("{}: tensor", where), kMaxNameBytes));
      graph_.parameters.push_back(std::move(parameter));
    }
    return {};
  }

  // Records every name that some node produces, to tell a cycle from a name that does not exist. Malformed nodes are
  // skipped; read_node() reports them.
  void record_producers(const json& nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i].is_object() || !nodes[i].contains("outputs") || !nodes[i]["outputs"].is_array()) continue;
      for (const auto& output : nodes[i]["outputs"]) {
        if (output.is_object() && output.contains("name") && output["name"].is_string()) {
          producer_.emplace(output["name"].get<std::string>(), i);
        }
      }
    }
  }

  Status read_node(const json& item) {
    static constexpr std::array<std::string_view, 5> kKeys = {"op", "arguments", "outputs", "module", "source"};
    auto where = fmt::format("graph.json: node {}", graph_.nodes.size());
    Node node;
    ACCORD_ASSIGN_OR_RETURN(const auto unnamed, JsonObject::read(item, where, kKeys));
    ACCORD_ASSIGN_OR_RETURN(node.op, unnamed.name("op"));
    where += fmt::format(" ({})", node.op);
    ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys));
    ACCORD_ASSIGN_OR_RETURN(node.module, object.text("module", kMaxNameBytes));
    ACCORD_ASSIGN_OR_RETURN(node.source, object.text("source", kMaxNameBytes));
    const auto& arguments = object.at("arguments");
    if (!arguments.is_object() || arguments.size() > kMaxListItems) {
      return object.corrupt(fmt::format("arguments: expected an object with at most {} entries", kMaxListItems));
    }
    for (const auto& argument : arguments.items()) {
      if (!is_identifier(argument.key()) || argument.key().size() > kMaxNameBytes) {
        return object.corrupt("an argument's name is not an identifier");
      }
      const auto place = fmt::format("{}: argument \"{}\"", where, argument.key());
      ACCORD_ASSIGN_OR_RETURN(auto value, read_argument(argument.value(), place));
      node.arguments.emplace(argument.key(), std::move(value));
    }
    ACCORD_ASSIGN_OR_RETURN(const auto* outputs, object.array("outputs", kMaxListItems));
    if (outputs->empty()) return object.corrupt("has no outputs");
    for (const auto& output : *outputs) {
      const auto place = fmt::format("{}: output {}", where, node.outputs.size());
      ACCORD_ASSIGN_OR_RETURN(const auto id, read_value(output, place));
      node.outputs.push_back(id);
    }
    graph_.nodes.push_back(std::move(node));
    return {};
  }

  Status read_outputs(const JsonObject& top) {
    ACCORD_ASSIGN_OR_RETURN(const auto* outputs, top.array("outputs", kMaxListItems));
    if (outputs->empty()) return top.corrupt("the graph has no outputs");
    for (const auto& output : *outputs) {
      ACCORD_ASSIGN_OR_RETURN(const auto reference, read_reference(output, "graph.json: outputs"));
      if (std::find(graph_.outputs.begin(), graph_.outputs.end(), reference.id) != graph_.outputs.end())
        return top.corrupt(fmt::format("\"{}\" appears twice among the outputs", graph_.values[reference.id].name));
      graph_.outputs.push_back(reference.id);
    }
    return {};
  }

  // Adds a value: {"name", "dtype", "shape"} and the keys of `more`.
  Result<ValueId> read_value(const json& item, const std::string& where, std::span<const std::string_view> more = {}) {
    std::vector<std::string_view> keys = {"name", "dtype", "shape"};
    keys.insert(keys.end(), more.begin(), more.end());
    ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, keys));
    Value value;
    ACCORD_ASSIGN_OR_RETURN(value.name, object.name("name"));
    ACCORD_ASSIGN_OR_RETURN(value.dtype, read_dtype(object.at("dtype"), where));
    ACCORD_ASSIGN_OR_RETURN(const auto* shape, object.array("shape", kMaxDimensions));
    for (const auto& size : *shape) {
      ACCORD_ASSIGN_OR_RETURN(auto read, read_size(size, where));
      value.shape.push_back(std::move(read));
    }
    ACCORD_RETURN_IF_ERROR(check_shape(value, where));
    const auto id = static_cast<ValueId>(graph_.values.size());
    if (graph_.values.size() >= kMaxValues) return object.corrupt("the graph has too many values");
    if (!ids_.emplace(value.name, id).second)
      return object.corrupt(fmt::format("\"{}\" is produced twice", value.name));
    graph_.values.push_back(std::move(value));
    return id;
  }

  Status check_shape(const Value& value, const std::string& where) const {
    auto bytes = static_cast<std::int64_t>(size_of(value.dtype));
    for (const auto& symbolic : value.shape) {
      const auto size = symbolic.range(ranges_);
      if (!size.ok()) return corrupt_at(where, size.status().message());
      if (size->min < 1 || size->max > kMaxSize) {
        return corrupt_at(where, fmt::format("\"{}\" can have a dimension of {} = {}", value.name, symbolic.to_string(),
                                             size->min < 1 ? size->min : size->max));
      }
      if (__builtin_mul_overflow(bytes, size->max, &bytes) || bytes > kMaxTensorBytes) {
        return corrupt_at(where, fmt::format("\"{}\" can have more than {} bytes", value.name, kMaxTensorBytes));
      }
    }
    return {};
  }

  static Result<DType> read_dtype(const json& item, const std::string& where) {
    ACCORD_ASSIGN_OR_RETURN(const auto name, read_text(item, where + ": dtype", kMaxNameBytes));
    auto dtype = engine_dtype_from_string(name);
    if (!dtype.ok()) return corrupt_at(where, dtype.status().message());
    return dtype;
  }

  // A whole number, or text over known symbols.
  Result<SymbolicInt> read_size(const json& item, const std::string& where) {
    if (!item.is_string()) {
      ACCORD_ASSIGN_OR_RETURN(const auto number, read_integer(item, where, INT64_MIN, INT64_MAX));
      return SymbolicInt(number);
    }
    ACCORD_ASSIGN_OR_RETURN(const auto text, read_text(item, where, kMaxSizeText));
    auto size = SymbolicInt::parse(text);
    if (!size.ok()) return corrupt_at(where, size.status().message());
    for (const auto& term : size->terms()) {
      for (const auto& symbol : term.symbols) {
        if (!ranges_.contains(symbol))
          return corrupt_at(where, unknown_name("symbol", symbol, symbol_names()).message());
      }
    }
    return size;
  }

  std::vector<std::string_view> symbol_names() const {
    std::vector<std::string_view> names;
    for (const auto& symbol : graph_.symbols) names.push_back(symbol.name);
    return names;
  }

  Result<ValueRef> read_reference(const json& item, const std::string& where) {
    ACCORD_ASSIGN_OR_RETURN(const auto name, read_text(item, where, kMaxNameBytes));
    if (const auto found = ids_.find(name); found != ids_.end()) return ValueRef{found->second};
    if (const auto later = producer_.find(name); later != producer_.end()) {
      return corrupt_at(where,
                        fmt::format("uses \"{}\", which only the later node {} produces: the graph has a cycle or is "
                                    "out of order",
                                    name, later->second));
    }
    return corrupt_at(where, fmt::format("uses \"{}\", which no node produces", name));
  }

  Result<Argument> read_argument(const json& item, const std::string& where) {
    if (item.is_null()) return Argument(None{});
    if (item.is_boolean()) return Argument(item.get<bool>());
    if (item.is_number_float()) return Argument(item.get<double>());
    if (item.is_number()) {
      ACCORD_ASSIGN_OR_RETURN(auto number, read_size(item, where));
      return Argument(std::move(number));
    }
    if (item.is_string()) {
      ACCORD_ASSIGN_OR_RETURN(auto text, read_text(item, where, kMaxNameBytes));
      return Argument(std::move(text));
    }
    if (item.is_array()) return read_sizes(item, where);
    return read_tagged(item, where);
  }

  Result<Argument> read_sizes(const json& item, const std::string& where) {
    if (item.size() > kMaxListItems) return corrupt_at(where, fmt::format("has more than {} entries", kMaxListItems));
    std::vector<SymbolicInt> sizes;
    for (const auto& size : item) {
      ACCORD_ASSIGN_OR_RETURN(auto read, read_size(size, where));
      sizes.push_back(std::move(read));
    }
    return Argument(std::move(sizes));
  }

  // {"value": name}, {"values": [name or null]}, {"symbolic": size}, {"dtype": name}, {"float": "inf", "-inf" or
  // "nan"}.
  Result<Argument> read_tagged(const json& item, const std::string& where) {
    static constexpr std::array<std::string_view, 5> kTags = {"value", "values", "symbolic", "dtype", "float"};
    ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, {}, kTags));
    if (item.size() != 1) return object.corrupt("expected an object with one key");
    if (object.has("value")) {
      ACCORD_ASSIGN_OR_RETURN(const auto reference, read_reference(object.at("value"), where));
      return Argument(reference);
    }
    if (object.has("symbolic")) {
      ACCORD_ASSIGN_OR_RETURN(auto size, read_size(object.at("symbolic"), where));
      return Argument(std::move(size));
    }
    if (object.has("dtype")) {
      ACCORD_ASSIGN_OR_RETURN(const auto dtype, read_dtype(object.at("dtype"), where));
      return Argument(dtype);
    }
    if (object.has("float")) {
      ACCORD_ASSIGN_OR_RETURN(const auto text, object.text("float", 8));
      if (text == "inf") return Argument(std::numeric_limits<double>::infinity());
      if (text == "-inf") return Argument(-std::numeric_limits<double>::infinity());
      if (text == "nan") return Argument(std::numeric_limits<double>::quiet_NaN());
      return object.corrupt("float: expected \"inf\", \"-inf\" or \"nan\"");
    }
    ACCORD_ASSIGN_OR_RETURN(const auto* names, object.array("values", kMaxListItems));
    std::vector<ValueRef> references;
    for (const auto& name : *names) {
      if (name.is_null()) {
        references.push_back(ValueRef{});
        continue;
      }
      ACCORD_ASSIGN_OR_RETURN(const auto reference, read_reference(name, where));
      references.push_back(reference);
    }
    return Argument(std::move(references));
  }

  Graph graph_;
  std::map<std::string, SymbolicInt::Range> ranges_;  // of the symbols
  std::map<std::string, ValueId> ids_;                // of the values read so far
  std::map<std::string, std::size_t> producer_;       // name -> the node that produces it
};

}  // namespace

Result<Graph> parse_graph(std::string_view text) {
  ACCORD_ASSIGN_OR_RETURN(const auto document, parse_json(text, "graph.json", kMaxGraphBytes));
  return Reader().read(document);
}

}  // namespace accord::engine
