// The pattern is copied, and constructs that the two syntaxes read differently are rewritten: character classes (\s,
// \w, \d), which PCRE2 defines in its own way, scripts (\p{Han}), which it widens, {,n}, and \u. Constructs that are
// not known to be read the same way are rejected by name. With PCRE2_MULTILINE, both treat ^ and $ as the ends of
// lines.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.hpp"
#include "tokenizer/regex.hpp"

namespace accord::tokenizer {
namespace {

// The members of Oniguruma's \w and \s. Outside a class, its \w also contains Latin-1's superscript digits and
// fractions.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kWordOutsideClass =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr std::string_view kSpace = "\\p{White_Space}";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_hexadecimal(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    if (folds_beyond_pcre2()) return unsupported("letters that match several letters if case is ignored,");
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        ACCORD_RETURN_IF_ERROR(escape(/*in_class=*/false));
      } else if (c == '[') {
        ACCORD_RETURN_IF_ERROR(character_class());
      } else if (c == '(') {
        ACCORD_RETURN_IF_ERROR(group());
      } else if (c == '{') {
        ACCORD_RETURN_IF_ERROR(interval());
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  Status unsupported(std::string_view what) const {
    return Status(StatusCode::kUnsupported, fmt::format("the regex {} has {} at byte {}, which accord does not support",
                                                        quoted_text(pattern_, 200), what, at_));
  }
  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  // In case-insensitive mode, Oniguruma matches "ss" with "ß", and similar pairs. PCRE2 never matches two characters
  // with one.
  bool folds_beyond_pcre2() const {
    if (pattern_.find("(?i") == std::string_view::npos) return false;
    constexpr std::array<std::string_view, 5> kFolded = {"ss", "ff", "fi", "fl", "st"};
    std::string lower;
    for (const char c : pattern_) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return std::ranges::any_of(kFolded, [&](std::string_view two) { return lower.find(two) != std::string::npos; }) ||
           std::ranges::any_of(pattern_, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  }

  // Copies `text` from the pattern unchanged.
  void copy(std::string_view text) {
    out_ += text;
    at_ += text.size();
  }
  // Writes `text` in place of the next `bytes` bytes of the pattern.
  void replace(std::string_view text, std::size_t bytes) {
    out_ += text;
    at_ += bytes;
  }

  Status escape(bool in_class) {
    if (at_ + 1 == pattern_.size()) return unsupported("a backslash at its end");
    const char c = pattern_[at_ + 1];
    const auto class_of = [&](std::string_view members, bool is_negated) {
      replace(in_class ? std::string(members) : fmt::format("[{}{}]", is_negated ? "^" : "", members), 2);
      return Status();
    };
    switch (c) {
      case 'p':
      case 'P': return property();
      case 's': return class_of(kSpace, false);
      case 'S': return in_class ? class_of("\\P{White_Space}", false) : class_of(kSpace, true);
      case 'd': return class_of("\\p{Nd}", false);
      case 'D': return class_of("\\P{Nd}", false);
      case 'h': return class_of("0-9a-fA-F", false);
      case 'w': return class_of(in_class ? kWord : kWordOutsideClass, false);
      case 'W': return in_class ? unsupported("\\W in a class") : class_of(kWordOutsideClass, true);
      case 'v': return replace("\\x0b", 2), Status();
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e': return copy(pattern_.substr(at_, 2)), Status();
      case 'x':
      case 'u': return code_point();
      default: break;
    }
    if (!in_class && (c == 'b' || c == 'B')) return word_edge(c == 'b');
    if (!in_class && (c == 'A' || c == 'z' || c == 'Z' || c == 'X')) return copy(pattern_.substr(at_, 2)), Status();
    if (is_letter(c) || is_digit(c)) return unsupported(fmt::format("\\{}", c));
    if (static_cast<unsigned char>(c) >= 0x80) return replace("", 1), Status();
    copy(pattern_.substr(at_, 2));
    return {};
  }

  Status word_edge(bool is_edge) {
    replace(is_edge ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWordOutsideClass)
                    : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWordOutsideClass),
            2);
    return {};
  }

  // Translates \p{L}, \p{^Lu} and \P{Han}.
  Status property() {
    const std::size_t end = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || end == std::string_view::npos) {
      return unsupported("\\p without {name}");
    }
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const std::string_view no = name.starts_with('^') ? "^" : "";
    name.remove_prefix(no.size());
    // Names of one or two letters are categories. PCRE2 takes longer ones to mean all characters used with a script.
    constexpr std::array<std::string_view, 11> kBinary = {"Any",       "Alphabetic", "Alpha",       "White_Space",
                                                          "Uppercase", "Lowercase",  "Ideographic", "Emoji",
                                                          "Dash",      "Hex_Digit",  "ASCII"};
    const bool is_category_or_binary = name.size() <= 2 || std::ranges::find(kBinary, name) != kBinary.end();
    replace(fmt::format("\\{}{{{}{}{}}}", pattern_[at_ + 1], no, is_category_or_binary ? "" : "sc:", name),
            end + 1 - at_);
    return {};
  }

  // Translates \x41, \x{1F600}, and \u with four digits. Two digits may only be ASCII: beyond that, Oniguruma means a
  // byte.
  Status code_point() {
    const bool is_braced = follows("\\x{");
    const std::size_t begin = at_ + (is_braced ? 3 : 2);
    std::size_t end = begin;
    const std::size_t max_count = is_braced ? 8 : pattern_[at_ + 1] == 'u' ? 4 : 2;
    while (end < pattern_.size() && end - begin < max_count && is_hexadecimal(pattern_[end])) ++end;
    const std::string_view digits = pattern_.substr(begin, end - begin);
    const bool is_closed =
        is_braced ? end < pattern_.size() && pattern_[end] == '}' && !digits.empty() : digits.size() == max_count;
    if (!is_closed || (!is_braced && max_count == 2 && digits[0] >= '8'))
      return unsupported("a code that is not a character");
    replace(fmt::format("\\x{{{}}}", digits), end - at_ + (is_braced ? 1 : 0));
    return {};
  }

  Status character_class() {
    copy("[");
    if (follows("^")) copy("^");
    if (follows("]")) return unsupported("] at the start of a class");
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      if (pattern_[at_] == '[') return unsupported("a class within a class");
      if (follows("&&")) return unsupported("&& in a class");
      if (pattern_[at_] == '\\') {
        ACCORD_RETURN_IF_ERROR(escape(/*in_class=*/true));
      } else {
        copy(pattern_.substr(at_, 1));
      }
    }
    if (at_ == pattern_.size()) return unsupported("a class that does not end");
    copy("]");
    return {};
  }

  Status group() {
    constexpr std::array<std::string_view, 8> kGroups = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    for (const auto opening : kGroups) {
      if (follows(opening)) return copy(opening), Status();
    }
    if (follows("(?i)") && at_ == 0) return copy("(?i)"), Status();  // elsewhere the two differ in its scope
    if (follows("(?")) return unsupported(quoted_text(pattern_.substr(at_, 3)));
    if (follows("(*")) return unsupported("(*");
    copy("(");
    return {};
  }

  // Translates {2}, {1,3}, {2,} and {,3}. Any other { stands for itself.
  Status interval() {
    std::size_t at = at_ + 1;
    const auto number = [&] {
      const std::size_t begin = at;
      while (at < pattern_.size() && is_digit(pattern_[at])) ++at;
      return pattern_.substr(begin, at - begin);
    };
    const std::string_view min_count = number();
    const bool is_range = at < pattern_.size() && pattern_[at] == ',';
    if (is_range) ++at;
    const std::string_view max_count = is_range ? number() : min_count;
    const bool is_interval = at < pattern_.size() && pattern_[at] == '}' && !(min_count.empty() && max_count.empty());
    if (!is_interval) return replace("\\{", 1), Status();
    const char next = at + 1 < pattern_.size() ? pattern_[at + 1] : '\0';
    if (next == '+' || (next == '?' && !is_range)) return unsupported("a quantifier after {n}");
    replace(
        fmt::format("{{{}{}{}}}", min_count.empty() ? "0" : min_count, is_range ? "," : "", is_range ? max_count : ""),
        at + 1 - at_);
    return {};
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) { return Translation(pattern).run(); }

}  // namespace accord::tokenizer
