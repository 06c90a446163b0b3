// Bounds of a size. Each symbol s in [min, max] is written as min + t with t in [0, max - min] and the products are
// multiplied out; then each term is bounded separately. For example, batch*(length - 1) with batch from 1 and length
// from 2 on, which is stored as batch*length - batch, becomes 1 + t1 + t2 + t1*t2, so its smallest value is found to
// be 1.

#include <fmt/format.h>

#include <optional>

#include "engine/graph/graph.hpp"

namespace accord::engine {
namespace {

using Range = SymbolicInt::Range;
using Term = SymbolicInt::Term;

// Rewrites a term over the shifted symbols: each factor s becomes min + t. Returns nullopt if a factor does not fit in
// 64 bits.
std::optional<std::vector<Term>> shifted(const Term& term, const std::map<std::string, Range>& ranges) {
  std::vector<Term> terms = {Term{term.factor, {}}};
  for (const auto& symbol : term.symbols) {
    const auto count = terms.size();
    for (std::size_t i = 0; i < count; ++i) {
      Term with_t = terms[i];
      with_t.symbols.push_back(symbol);
      if (__builtin_mul_overflow(terms[i].factor, ranges.at(symbol).min, &terms[i].factor)) return std::nullopt;
      terms.push_back(std::move(with_t));
    }
  }
  return terms;
}

}  // namespace

Result<Range> SymbolicInt::range(const std::map<std::string, Range>& symbols) const {
  const auto overflow = [&] {
    return Status(StatusCode::kInvalidArgument, fmt::format("the size {} does not fit in 64 bits", to_string()));
  };
  std::map<std::vector<std::string>, std::int64_t> factors;
  for (const auto& term : terms_) {
    for (const auto& symbol : term.symbols) {
      if (symbols.contains(symbol)) continue;
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("the size {} needs \"{}\", which has no value", to_string(), symbol));
    }
    const auto parts = shifted(term, symbols);
    if (!parts) return overflow();
    for (const auto& part : *parts) {
      auto& factor = factors[part.symbols];
      if (__builtin_add_overflow(factor, part.factor, &factor)) return overflow();
    }
  }
  Range range;
  for (const auto& [names, factor] : factors) {
    auto largest = factor;  // the term's value furthest from 0; the nearest is 0, except for the constant
    for (const auto& name : names) {
      const auto& limits = symbols.at(name);
      if (__builtin_mul_overflow(largest, limits.max - limits.min, &largest)) return overflow();
    }
    const bool raises = names.empty() || largest > 0;
    const bool lowers = names.empty() || largest < 0;
    if (raises && __builtin_add_overflow(range.max, largest, &range.max)) return overflow();
    if (lowers && __builtin_add_overflow(range.min, largest, &range.min)) return overflow();
  }
  return range;
}

}  // namespace accord::engine
