// SymbolicInt keeps its terms sorted: the term with the symbol is first, the constant last.
#include "engine/graph/derived_size.hpp"

namespace accord::engine {

std::optional<std::int64_t> DerivedSize::symbol_value(std::int64_t size) const {
  std::int64_t multiple = 0;
  if (__builtin_sub_overflow(size, offset, &multiple) || multiple % factor != 0) return std::nullopt;
  return multiple / factor;
}

std::optional<DerivedSize> derived_size(const SymbolicInt& size) {
  const auto& terms = size.terms();
  if (terms.empty() || terms.size() > 2 || terms[0].symbols.size() != 1 || terms[0].factor < 1) return std::nullopt;
  if (terms.size() == 2 && !terms[1].symbols.empty()) return std::nullopt;
  return DerivedSize{terms[0].symbols[0], terms[0].factor, terms.size() == 2 ? terms[1].factor : 0};
}

}  // namespace accord::engine
