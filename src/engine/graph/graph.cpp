// A SymbolicInt is a sum of terms, each a factor times symbols. The form is canonical, so that equal polynomials
// compare equal: the symbols of each term are sorted, the terms are sorted (more symbols first, the constant last),
// and no term has factor 0. Text is parsed by recursive descent:
//     sum = product {(+|-) product};  product = unary {* unary};  unary = [-] (number | symbol | "(" sum ")")
// All arithmetic is checked for overflow.

#include "engine/graph/graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "base/text.hpp"

namespace accord::engine {
namespace {

using Term = SymbolicInt::Term;

constexpr std::size_t kMaxTextBytes = 1024;
constexpr std::size_t kMaxTerms = 64;
constexpr std::size_t kMaxDegree = 8;
constexpr int kMaxSizeDepth = 16;

Status corrupt_size(std::string_view text, std::string_view why) {
  return Status(StatusCode::kCorrupt, fmt::format("the size \"{}\" {}", text.substr(0, 80), why));
}

bool before(const Term& a, const Term& b) {
  if (a.symbols.size() != b.symbols.size()) return a.symbols.size() > b.symbols.size();
  return a.symbols < b.symbols;
}

// Sorts the terms and adds up equal ones. Returns false on overflow.
bool normalize(std::vector<Term>& terms) {
  std::sort(terms.begin(), terms.end(), before);
  std::vector<Term> merged;
  for (auto& term : terms) {
    if (!merged.empty() && merged.back().symbols == term.symbols) {
      auto& factor = merged.back().factor;
      if (__builtin_add_overflow(factor, term.factor, &factor)) return false;
    } else {
      merged.push_back(std::move(term));
    }
  }
  std::erase_if(merged, [](const Term& term) { return term.factor == 0; });
  terms = std::move(merged);
  return true;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<std::vector<Term>> parse() {
    ACCORD_ASSIGN_OR_RETURN(auto terms, sum());
    skip_spaces();
    if (at_ != text_.size()) return corrupt_size(text_, fmt::format("has text after its end, at byte {}", at_));
    return terms;
  }

 private:
  using Terms = std::vector<Term>;

  Result<Terms> sum() {
    if (++depth_ > kMaxSizeDepth) return corrupt_size(text_, "is nested too deeply");
    ACCORD_ASSIGN_OR_RETURN(auto total, product());
    for (;;) {
      const bool minus = consume('-');
      if (!minus && !consume('+')) break;
      ACCORD_ASSIGN_OR_RETURN(auto next, product());
      if (minus && !negate(next)) return corrupt_size(text_, "does not fit in 64 bits");
      std::move(next.begin(), next.end(), std::back_inserter(total));
      if (!normalize(total)) return corrupt_size(text_, "does not fit in 64 bits");
      if (total.size() > kMaxTerms) return corrupt_size(text_, "has too many terms");
    }
    --depth_;
    return total;
  }

  Result<Terms> product() {
    ACCORD_ASSIGN_OR_RETURN(auto total, unary());
    while (consume('*')) {
      ACCORD_ASSIGN_OR_RETURN(auto next, unary());
      ACCORD_ASSIGN_OR_RETURN(total, multiply(total, next));
    }
    return total;
  }

  Result<Terms> unary() {
    if (consume('-')) {
      if (++depth_ > kMaxSizeDepth) return corrupt_size(text_, "is nested too deeply");
      ACCORD_ASSIGN_OR_RETURN(auto terms, unary());
      --depth_;
      if (!negate(terms)) return corrupt_size(text_, "does not fit in 64 bits");
      return terms;
    }
    if (consume('(')) {
      ACCORD_ASSIGN_OR_RETURN(auto terms, sum());
      if (!consume(')')) return corrupt_size(text_, "has a parenthesis that is not closed");
      return terms;
    }
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) return number();
    return symbol();
  }

  Result<Terms> number() {
    std::int64_t value = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value)) {
        return corrupt_size(text_, "does not fit in 64 bits");
      }
    }
    if (value == 0) return Terms{};
    return Terms{Term{value, {}}};
  }

  Result<Terms> symbol() {
    const auto begin = at_;
    const auto is_part = [&](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) || c == '_' ||
             (at_ > begin && std::isdigit(static_cast<unsigned char>(c)));
    };
    while (at_ < text_.size() && is_part(text_[at_])) ++at_;
    if (at_ == begin) return corrupt_size(text_, fmt::format("has no number or symbol at byte {}", at_));
    return Terms{Term{1, {std::string(text_.substr(begin, at_ - begin))}}};
  }

  Result<Terms> multiply(const Terms& a, const Terms& b) {
    Terms product;
    for (const auto& x : a) {
      for (const auto& y : b) {
        Term term;
        if (__builtin_mul_overflow(x.factor, y.factor, &term.factor))
          return corrupt_size(text_, "does not fit in 64 bits");
        std::merge(x.symbols.begin(), x.symbols.end(), y.symbols.begin(), y.symbols.end(),
                   std::back_inserter(term.symbols));
        if (term.symbols.size() > kMaxDegree) return corrupt_size(text_, "multiplies too many symbols");
        product.push_back(std::move(term));
      }
    }
    if (!normalize(product)) return corrupt_size(text_, "does not fit in 64 bits");
    if (product.size() > kMaxTerms) return corrupt_size(text_, "has too many terms");
    return product;
  }

  static bool negate(Terms& terms) {
    return std::none_of(terms.begin(), terms.end(),
                        [](Term& term) { return __builtin_sub_overflow(std::int64_t{0}, term.factor, &term.factor); });
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  // Consumes `c` and the spaces around it if it is next.
  bool consume(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_spaces();
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

SymbolicInt::SymbolicInt(std::int64_t value) {
  if (value != 0) terms_.push_back(Term{value, {}});
}

Result<SymbolicInt> SymbolicInt::parse(std::string_view text) {
  if (text.size() > kMaxTextBytes) return corrupt_size(text, "is too long");
  SymbolicInt parsed;
  ACCORD_ASSIGN_OR_RETURN(parsed.terms_, Parser(text).parse());
  return parsed;
}

bool SymbolicInt::is_constant() const { return terms_.empty() || (terms_.size() == 1 && terms_[0].symbols.empty()); }

std::int64_t SymbolicInt::constant() const { return terms_.empty() ? 0 : terms_[0].factor; }

Result<std::int64_t> SymbolicInt::evaluate(const std::map<std::string, std::int64_t>& symbols) const {
  const auto overflow = [&] {
    return Status(StatusCode::kInvalidArgument, fmt::format("the size {} does not fit in 64 bits", to_string()));
  };
  std::int64_t total = 0;
  for (const auto& term : terms_) {
    std::int64_t product = term.factor;
    for (const auto& symbol : term.symbols) {
      const auto found = symbols.find(symbol);
      if (found == symbols.end()) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("the size {} needs \"{}\", which has no value", to_string(), symbol));
      }
      if (__builtin_mul_overflow(product, found->second, &product)) return overflow();
    }
    if (__builtin_add_overflow(total, product, &total)) return overflow();
  }
  return total;
}

std::string SymbolicInt::to_string() const {
  if (terms_.empty()) return "0";
  std::string text;
  for (const auto& term : terms_) {
    const bool negative = term.factor < 0;
    // Unsigned, so that the most negative number has an absolute value too.
    const auto magnitude =
        negative ? std::uint64_t{0} - static_cast<std::uint64_t>(term.factor) : static_cast<std::uint64_t>(term.factor);
    if (text.empty()) {
      if (negative) text += '-';
    } else {
      text += negative ? " - " : " + ";
    }
    std::vector<std::string> factors;
    if (magnitude != 1 || term.symbols.empty()) factors.push_back(std::to_string(magnitude));
    factors.insert(factors.end(), term.symbols.begin(), term.symbols.end());
    text += fmt::format("{}", fmt::join(factors, "*"));
  }
  return text;
}

std::string shape_text(const SymbolicShape& shape) {
  std::string text;
  for (const SymbolicInt& size : shape) text += (text.empty() ? "" : ", ") + size.to_string();
  return "[" + text + "]";
}

}  // namespace accord::engine
