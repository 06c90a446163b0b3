#pragma once
// Patterns of splits and replacements, a literal text or a regex, and how a split treats their matches.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json_node.hpp"
#include "tokenizer/regex.hpp"

namespace accord::tokenizer {

/// {"String": "..."} or {"Regex": "..."}.
class Pattern {
 public:
  static Result<Pattern> read(const JsonNode& node);
  /// Compiles a regex in Oniguruma's syntax.
  static Result<Pattern> of_regex(std::string_view regex);
  static Pattern of_text(std::string text) { return Pattern(std::move(text)); }

  /// Calls `found(match)` for each match in `text`, from left to right, without overlaps. An empty match is skipped
  /// where another match ends. Fails like Regex::find.
  template <typename Found>
  Status for_each(std::string_view text, Found found) const;

 private:
  explicit Pattern(std::variant<std::string, Regex> pattern) : pattern_(std::move(pattern)) {}
  Result<bool> find(std::string_view text, std::size_t from, Match& match) const;
  std::variant<std::string, Regex> pattern_;
};

/// The treatment of the matches ("delimiters") by a split.
enum class SplitBehavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
Result<SplitBehavior> read_split_behavior(const JsonNode& node);

/// A section of a text: a match, or the text between matches.
struct Segment {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_match = false;
};

/// Rewrites the segments, which cover a text, to the result of a split with `behavior`.
void apply_behavior(SplitBehavior behavior, std::vector<Segment>& segments);

template <typename Found>
Status Pattern::for_each(std::string_view text, Found found) const {
  std::size_t last_end = std::string_view::npos;
  Match match;
  for (std::size_t from = 0; from <= text.size();) {
    ACCORD_ASSIGN_OR_RETURN(const bool is_found, find(text, from, match));
    if (!is_found) break;
    if (match.begin == match.end && match.end == last_end) {
      do ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80);
      continue;
    }
    from = last_end = match.end;
    found(match);
  }
  return {};
}

}  // namespace accord::tokenizer
