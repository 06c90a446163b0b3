// First every dimension that is a symbol by itself gives that symbol its value; then all sizes are evaluated and compared. It
// all happens before anything runs, so equal inputs fail alike on every rank and no collective is left waiting.
#include "engine/runtime/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::engine {
namespace {

// The position of the symbol that `size` is, -1 if it is something else.
std::ptrdiff_t lone_symbol(const Graph& graph, const SymbolicInt& size) {
  const auto& terms = size.terms();
  if (terms.size() != 1 || terms[0].factor != 1 || terms[0].symbols.size() != 1) return -1;
  const auto found = std::find_if(graph.symbols.begin(), graph.symbols.end(),
                                  [&](const Symbol& symbol) { return symbol.name == terms[0].symbols[0]; });
  return found == graph.symbols.end() ? -1 : found - graph.symbols.begin();
}

Status wrong(const std::string& name, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, fmt::format("input \"{}\": {}", name, what));
}

Status check_one(const Value& value, const TensorView& input, Device device) {
  if (input.buffer.device != Device() && input.buffer.device != device) {
    return wrong(value.name, device == Device() ? "its memory is not the CPU's"
                                                : fmt::format("its memory is on {}, the engine is on {}",
                                                              to_string(input.buffer.device), to_string(device)));
  }
  if (input.buffer.dtype != value.dtype) {
    return wrong(value.name, fmt::format("expected {}, got {}", to_string(value.dtype), to_string(input.buffer.dtype)));
  }
  if (input.shape.size() != value.shape.size()) {
    return wrong(value.name, fmt::format("expected {} dimensions {}, got {} dimensions {}", value.shape.size(),
                                         shape_text(value.shape), input.shape.size(), sizes_text(input.shape)));
  }
  std::size_t count = 1;
  for (const std::int64_t size : input.shape) {
    if (size < 0 || size > (std::int64_t{1} << 40))
      return wrong(value.name, "its shape " + sizes_text(input.shape) + " cannot be");
    count *= static_cast<std::size_t>(size);
    if (count > std::size_t{1} << 46) return wrong(value.name, "its shape " + sizes_text(input.shape) + " cannot be");
  }
  if (input.buffer.count != count || (count > 0 && input.buffer.data == nullptr)) {
    return wrong(value.name, fmt::format("its shape {} has {} elements, its buffer {}", sizes_text(input.shape), count,
                                         input.buffer.count));
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
                  fmt::format("the engine takes {} inputs, not {}", graph.inputs.size(), inputs.size()));
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
      const std::ptrdiff_t at = lone_symbol(graph, value.shape[dim]);
      if (at < 0) continue;
      const Symbol& symbol = graph.symbols[static_cast<std::size_t>(at)];
      const std::int64_t size = inputs[i].shape[dim];
      if (size < symbol.min || size > symbol.max) {
        return wrong(value.name, fmt::format("dimension {} (\"{}\") is {}, outside {} to {}", dim, symbol.name, size,
                                             symbol.min, symbol.max));
      }
      std::int64_t& known = values[static_cast<std::size_t>(at)];
      if (known != -1 && known != size) {
        return wrong(value.name, fmt::format("dimension {} (\"{}\") is {}, but {} in an earlier input or dimension",
                                             dim, symbol.name, size, known));
      }
      known = size;
    }
  }
  const SymbolValues symbols = symbol_values(graph, values);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph.values[static_cast<std::size_t>(graph.inputs[i])];
    for (std::size_t dim = 0; dim < value.shape.size(); ++dim) {
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t expected, value.shape[dim].evaluate(symbols));
      if (inputs[i].shape[dim] == expected) continue;
      return wrong(value.name, fmt::format("dimension {} is {}, expected {}{}", dim, inputs[i].shape[dim], expected,
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
