// First, every dimension that is a symbol, or is derived from one (2*h + 1), gives that symbol its value. Then all
// sizes are evaluated and compared. All of this happens before anything runs, so equal inputs fail alike on every
// rank and no collective is left waiting.
#include "engine/runtime/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/graph/derived_size.hpp"

namespace accord::engine {
namespace {

// A dimension that gives a symbol its value.
struct SymbolSource {
  std::size_t symbol = 0;  // position in Graph::symbols
  DerivedSize size;
};

std::optional<SymbolSource> symbol_source(const Graph& graph, const SymbolicInt& size) {
  auto derived = derived_size(size);
  if (!derived) return std::nullopt;
  const auto found = std::find_if(graph.symbols.begin(), graph.symbols.end(),
                                  [&](const Symbol& symbol) { return symbol.name == derived->symbol; });
  if (found == graph.symbols.end()) return std::nullopt;
  return SymbolSource{static_cast<std::size_t>(found - graph.symbols.begin()), *std::move(derived)};
}

Status input_error(const std::string& name, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, fmt::format("input \"{}\": {}", name, what));
}

Status check_one(const Value& value, const TensorView& input, Device device) {
  if (input.buffer.device != Device() && input.buffer.device != device) {
    return input_error(value.name, device == Device() ? "its memory is not CPU memory"
                                                      : fmt::format("its memory is on {}, but the engine is on {}",
                                                                    to_string(input.buffer.device), to_string(device)));
  }
  if (input.buffer.dtype != value.dtype) {
    return input_error(value.name,
                       fmt::format("expected {}, got {}", to_string(value.dtype), to_string(input.buffer.dtype)));
  }
  if (input.shape.size() != value.shape.size()) {
    return input_error(value.name, fmt::format("expected {} dimensions {}, got {} dimensions {}", value.shape.size(),
                                               shape_text(value.shape), input.shape.size(), sizes_text(input.shape)));
  }
  std::size_t count = 1;
  for (const std::int64_t size : input.shape) {
    if (size < 0 || size > (std::int64_t{1} << 40))
      return input_error(value.name, "its shape " + sizes_text(input.shape) + " is not valid");
    count *= static_cast<std::size_t>(size);
    if (count > std::size_t{1} << 46)
      return input_error(value.name, "its shape " + sizes_text(input.shape) + " is not valid");
  }
  if (input.buffer.count != count || (count > 0 && input.buffer.data == nullptr)) {
    return input_error(value.name, fmt::format("its shape {} has {} elements, but its buffer has {}",
                                               sizes_text(input.shape), count, input.buffer.count));
  }
  return Status();
}

}  // namespace

std::vector<TensorInfo> tensor_infos(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<TensorInfo> infos;
  for (const ValueId id : values) {
    const Value& value = graph.values[static_cast<std::size_t>(id)];
    TensorInfo info{value.name, value.dtype, {}};
    for (const SymbolicInt& size : value.shape) info.shape.push_back(size.to_string());
    infos.push_back(std::move(info));
  }
  return infos;
}

Status check_memory(const Graph& graph, std::span<const TensorView> inputs, Device device) {
  if (inputs.size() != graph.inputs.size()) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the engine takes {} inputs, but {} were given", graph.inputs.size(), inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ACCORD_RETURN_IF_ERROR(check_one(graph.values[static_cast<std::size_t>(graph.inputs[i])], inputs[i], device));
  }
  return Status();
}

Result<std::vector<std::int64_t>> match_inputs(const Graph& graph, std::span<const TensorView> inputs) {
  std::vector<std::int64_t> values(graph.symbols.size(), -1);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph.values[static_cast<std::size_t>(graph.inputs[i])];
    for (std::size_t dim = 0; dim < value.shape.size(); ++dim) {
      const auto source = symbol_source(graph, value.shape[dim]);
      if (!source) continue;
      const Symbol& symbol = graph.symbols[source->symbol];
      const std::int64_t size = inputs[i].shape[dim];
      const std::string text = value.shape[dim].to_string();
      const auto given = source->size.symbol_value(size);
      if (!given)
        return input_error(value.name, fmt::format("dimension {} is {}, which is not a value of {}", dim, size, text));
      if (*given < symbol.min || *given > symbol.max) {
        const auto limit = [&](std::int64_t end) { return end * source->size.factor + source->size.offset; };
        return input_error(value.name, fmt::format("dimension {} (\"{}\") is {}, outside {} to {}", dim, text, size,
                                                   limit(symbol.min), limit(symbol.max)));
      }
      std::int64_t& known = values[source->symbol];
      if (known != -1 && known != *given) {
        const auto expected = known * source->size.factor + source->size.offset;
        return input_error(
            value.name, fmt::format("dimension {} (\"{}\") is {}, but {} in an earlier input or dimension", dim, text,
                                    size, expected));
      }
      known = *given;
    }
  }
  const SymbolValues symbols = symbol_values(graph, values);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph.values[static_cast<std::size_t>(graph.inputs[i])];
    for (std::size_t dim = 0; dim < value.shape.size(); ++dim) {
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t expected, value.shape[dim].evaluate(symbols));
      if (inputs[i].shape[dim] == expected) continue;
      return input_error(value.name,
                         fmt::format("dimension {} is {}, expected {}{}", dim, inputs[i].shape[dim], expected,
                                     value.shape[dim].is_constant() ? "" : " = " + value.shape[dim].to_string()));
    }
  }
  return values;
}

SymbolValues symbol_values(const Graph& graph, std::span<const std::int64_t> values) {
  SymbolValues symbols;
  for (std::size_t i = 0; i < values.size(); ++i) {
    symbols[graph.symbols[i].name] = values[i];
  }
  return symbols;
}

}  // namespace accord::engine
