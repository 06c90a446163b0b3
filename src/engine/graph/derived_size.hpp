#pragma once
// Sizes of inputs that give a symbol its value: the symbol itself, or factor * symbol + offset.

#include <cstdint>
#include <optional>
#include <string>

#include "engine/graph/graph.hpp"

namespace accord::engine {

struct DerivedSize {
  std::string symbol;
  std::int64_t factor = 1;  ///< at least 1
  std::int64_t offset = 0;

  /// The symbol's value where the size is `size`; nullopt if no whole number gives that.
  std::optional<std::int64_t> symbol_value(std::int64_t size) const;
};

/// nullopt for a size that is constant, has several symbols or a power of one, or shrinks as its symbol grows.
std::optional<DerivedSize> derived_size(const SymbolicInt& size);

}  // namespace accord::engine
