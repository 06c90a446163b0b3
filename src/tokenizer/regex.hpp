#pragma once
// Regular expressions of tokenizer files, which are written for Oniguruma (Ruby's syntax), run by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord::tokenizer {

/// A stretch of a text.
struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// `pattern` in PCRE2's syntax with the meaning that it has in Oniguruma. kUnsupported names what is beyond the part of the syntax
/// that both share: named groups, back references, classes within classes, and the like.
Result<std::string> translate_regex(std::string_view pattern);

/// A compiled pattern. Any number of threads may use it at once.
class Regex {
 public:
  /// `pattern` as Oniguruma understands it. kUnsupported as above, kCorrupt if it is no regular expression.
  static Result<Regex> compile(std::string_view pattern);

  /// Finds the leftmost match in `text` that begins at `from` or later; false if there is none. REQUIRES: well-formed UTF-8.
  /// kResourceExhausted if that takes more than ten million steps.
  Result<bool> find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Code;  // PCRE2's
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace accord::tokenizer
