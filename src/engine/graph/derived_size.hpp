#pragma once
// Input sizes that determine the value of a symbol: the symbol itself, or factor * symbol + offset.

#include <cstdint>
#include <optional>
#include <string>

#include "engine/graph/graph.hpp"

namespace accord::engine {

struct DerivedSize {
  std::string symbol;
  std::int64_t factor = 1;  ///< at least 1
  std::int64_t offset = 0;

  /// Returns the symbol's value if the size is `size`, or nullopt if no whole number yields that size.
  std::optional<std::int64_t> symbol_value(std::int64_t size) const;
};

/// Returns `size` as factor * symbol + offset. nullopt if `size` is constant, has several symbols or a power of one,
/// or shrinks as its symbol grows.
std::optional<DerivedSize> derived_size(const SymbolicInt& size);

}  // namespace accord::engine
