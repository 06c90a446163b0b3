#pragma once
// Regular expressions in tokenizer files. They are written for Oniguruma (Ruby's syntax) and run by PCRE2.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord::tokenizer {

/// A section of a text.
struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Translates `pattern` to PCRE2's syntax with the meaning that it has in Oniguruma. Fails with kUnsupported, which
/// names the construct, for anything outside the common part of both syntaxes: named groups, back references, nested
/// classes, and the like.
Result<std::string> translate_regex(std::string_view pattern);

/// A compiled pattern. Any number of threads may use it at the same time.
class Regex {
 public:
  /// Compiles a pattern in Oniguruma's syntax. Fails with kUnsupported like translate_regex(), and with kCorrupt if
  /// it is not a regular expression.
  static Result<Regex> compile(std::string_view pattern);

  /// Finds the leftmost match in `text` that begins at `from` or later. Returns false if there is none. Fails with
  /// kResourceExhausted if the search takes more than ten million steps. REQUIRES: well-formed UTF-8.
  Result<bool> find(std::string_view text, std::size_t from, Match& match) const;

 private:
  struct Code;  // PCRE2's compiled code
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

}  // namespace accord::tokenizer
