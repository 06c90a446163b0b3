#include "tokenizer/pattern.hpp"

#include <array>

namespace accord::tokenizer {

Result<Pattern> Pattern::read(const JsonNode& node) {
  if (!node.json().is_object() || node.json().size() != 1)
    return node.error("expected {\"String\": ...} or {\"Regex\": ...}");
  if (node.has("String")) {
    ACCORD_ASSIGN_OR_RETURN(std::string text, node.at("String").text());
    return Pattern(std::move(text));
  }
  ACCORD_ASSIGN_OR_RETURN(const JsonNode regex_node, node.required("Regex"));
  ACCORD_ASSIGN_OR_RETURN(const std::string text, regex_node.text());
  auto pattern = of_regex(text);
  if (!pattern.ok()) return regex_node.error_as(pattern.status().code(), pattern.status().message());
  return pattern;
}

Result<Pattern> Pattern::of_regex(std::string_view regex) {
  ACCORD_ASSIGN_OR_RETURN(Regex compiled, Regex::compile(regex));
  return Pattern(std::move(compiled));
}

Result<bool> Pattern::find(std::string_view text, std::size_t from, Match& match) const {
  if (const auto* regex = std::get_if<Regex>(&pattern_)) return regex->find(text, from, match);
  const auto& literal = std::get<std::string>(pattern_);
  const std::size_t begin = text.find(literal, from);
  match = {begin, begin + literal.size()};
  return begin != std::string_view::npos;
}

Result<SplitBehavior> read_split_behavior(const JsonNode& node) {
  constexpr std::array<std::string_view, 5> kNames = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                      "Contiguous"};
  ACCORD_ASSIGN_OR_RETURN(const std::string name, node.text());
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return node.error(unknown_name("behavior", name, kNames).message());
  return static_cast<SplitBehavior>(found - kNames.begin());
}

void apply_behavior(SplitBehavior behavior, std::vector<Segment>& segments) {
  std::vector<Segment> result;
  result.reserve(segments.size());
  bool previous = false;
  const auto add = [&](const Segment& segment, bool is_merged) {
    if (is_merged && !result.empty()) {
      result.back().begin = std::min(result.back().begin, segment.begin);
      result.back().end = std::max(result.back().end, segment.end);
    } else {
      result.push_back(segment);
    }
    previous = segment.is_match;
  };
  switch (behavior) {
    case SplitBehavior::kIsolated: return;
    case SplitBehavior::kRemoved:
      std::erase_if(segments, [](const Segment& segment) { return segment.is_match; });
      return;
    case SplitBehavior::kContiguous:
      for (const Segment& segment : segments) add(segment, segment.is_match == previous);
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Segment& segment : segments) add(segment, segment.is_match && !previous);
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
        add(*segment, segment->is_match && !previous);
      }
      std::ranges::reverse(result);
      break;
  }
  segments = std::move(result);
}

}  // namespace accord::tokenizer
