// A split only divides the words of the list and leaves the text unchanged. ByteLevelPreTokenizer and
// MetaspacePreTokenizer change the text, so they rewrite it.

#include "tokenizer/pre_tokenizer.hpp"

#include <array>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/characters.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

std::string_view text_of(const Words& words, const Word& word) {
  return std::string_view(words.text).substr(word.begin, word.end - word.begin);
}

// Splits each word into the segments that `segments_of(text, segments)` returns for its text.
template <typename SegmentsOf>
Status split_each(Words& words, SegmentsOf segments_of) {
  std::vector<Word> result;
  result.reserve(std::max(words.list.size(), words.text.size() / 5));
  std::vector<Segment> segments;
  for (const Word& word : words.list) {
    segments.clear();
    ACCORD_RETURN_IF_ERROR(segments_of(text_of(words, word), segments));
    for (const Segment& segment : segments) {
      if (segment.begin == segment.end) continue;
      result.push_back({word.begin + segment.begin, word.begin + segment.end, word.begins_input && segment.begin == 0});
    }
  }
  words.list = std::move(result);
  return {};
}

// Returns the matches of `pattern` and the text between them as segments.
Status segments_of_pattern(const Pattern& pattern, std::string_view text, std::vector<Segment>& segments) {
  std::size_t end = 0;
  ACCORD_RETURN_IF_ERROR(pattern.for_each(text, [&](const Match& match) {
    if (end != match.begin) segments.push_back({end, match.begin, false});
    segments.push_back({match.begin, match.end, true});
    end = match.end;
  }));
  if (end != text.size()) segments.push_back({end, text.size(), false});
  return {};
}

// Returns each character for which `is_one` is true, and the text between them, as segments.
template <typename IsOne>
void segments_of_characters(IsOne is_one, std::string_view text, std::vector<Segment>& segments) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!is_one(next_character(text, at))) continue;
    if (end < begin) segments.push_back({end, begin, false});
    segments.push_back({begin, at, true});
    end = at;
  }
  if (end < text.size()) segments.push_back({end, text.size(), false});
}

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitBehavior behavior, bool is_inverted)
      : pattern_(std::move(pattern)), behavior_(behavior), is_inverted_(is_inverted) {}
  Status apply(Words& words) const override {
    return split_each(words, [&](std::string_view text, std::vector<Segment>& segments) -> Status {
      ACCORD_RETURN_IF_ERROR(segments_of_pattern(pattern_, text, segments));
      if (is_inverted_) {
        for (Segment& segment : segments) segment.is_match = !segment.is_match;
      }
      apply_behavior(behavior_, segments);
      return {};
    });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool is_inverted_;
};

// Splits at the characters of a class.
class SplitCharacters : public PreTokenizer {
 public:
  using IsOne = bool (*)(char32_t);
  SplitCharacters(IsOne is_one, SplitBehavior behavior) : is_one_(is_one), behavior_(behavior) {}
  Status apply(Words& words) const override {
    return split_each(words, [&](std::string_view text, std::vector<Segment>& segments) {
      segments_of_characters(is_one_, text, segments);
      apply_behavior(behavior_, segments);
      return Status();
    });
  }

 private:
  IsOne is_one_;
  SplitBehavior behavior_;
};

class BertPreTokenizer : public PreTokenizer {
 public:
  Status apply(Words& words) const override {
    ACCORD_RETURN_IF_ERROR(spaces_.apply(words));
    return punctuation_.apply(words);
  }

 private:
  SplitCharacters spaces_{is_space, SplitBehavior::kRemoved};
  SplitCharacters punctuation_{is_punctuation, SplitBehavior::kIsolated};
};

// Splits into runs of word characters and runs of other non-space characters.
class WhitespacePreTokenizer : public PreTokenizer {
 public:
  Status apply(Words& words) const override {
    enum class Kind : std::uint8_t { kSpace, kWord, kOther };
    return split_each(words, [](std::string_view text, std::vector<Segment>& segments) {
      Kind last = Kind::kSpace;
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t begin = at;
        const char32_t c = next_character(text, at);
        const Kind kind = is_word(c) ? Kind::kWord : is_space(c) ? Kind::kSpace : Kind::kOther;
        if (kind != Kind::kSpace && kind == last) {
          segments.back().end = at;
        } else if (kind != Kind::kSpace) {
          segments.push_back({begin, at, false});
        }
        last = kind;
      }
      return Status();
    });
  }
};

// GPT-2's scheme: an optional space before the text, its regex, and bytes spelled in an alphabet of printable
// characters.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::optional<Pattern> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  Status apply(Words& words) const override {
    if (add_prefix_space_) add_spaces(words);
    if (pattern_) {
      ACCORD_RETURN_IF_ERROR(split_each(words, [&](std::string_view text, std::vector<Segment>& segments) {
        return segments_of_pattern(*pattern_, text, segments);
      }));
    }
    if (encode_words) encode(words);
    return {};
  }

  bool encode_words = true;

 private:
  static void add_spaces(Words& words) {
    std::string text;
    for (Word& word : words.list) {
      const auto before = text_of(words, word);
      const std::size_t begin = text.size();
      if (!before.starts_with(' ')) text += ' ';
      text += before;
      word = {begin, text.size(), word.begins_input};
    }
    words.text = std::move(text);
  }
  static void encode(Words& words) {
    std::string text;
    for (Word& word : words.list) {
      const std::size_t begin = text.size();
      text += encode_bytes(text_of(words, word));
      word = {begin, text.size(), word.begins_input};
    }
    words.text = std::move(text);
  }

  bool add_prefix_space_;
  std::optional<Pattern> pattern_;
};

// SentencePiece's scheme: spaces become a visible character, which begins a word.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  enum class Prepend : std::uint8_t { kFirst, kNever, kAlways };
  MetaspacePreTokenizer(std::string replacement, Prepend prepend, bool splits)
      : replacement_(std::move(replacement)),
        pattern_(Pattern::of_text(replacement_)),
        prepend_(prepend),
        splits_(splits) {}

  Status apply(Words& words) const override {
    std::string text;
    text.reserve(words.text.size() * 3 / 2);
    for (Word& word : words.list) {
      const auto before = text_of(words, word);
      const std::size_t begin = text.size();
      const bool is_prepended = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && word.begins_input);
      if (is_prepended && !before.starts_with(' ') && !before.starts_with(replacement_)) text += replacement_;
      for (const char c : before) {
        if (c == ' ') {
          text += replacement_;
        } else {
          text += c;
        }
      }
      word = {begin, text.size(), word.begins_input};
    }
    words.text = std::move(text);
    if (!splits_) return {};
    return split_each(words, [&](std::string_view word, std::vector<Segment>& segments) -> Status {
      ACCORD_RETURN_IF_ERROR(segments_of_pattern(pattern_, word, segments));
      apply_behavior(SplitBehavior::kMergedWithNext, segments);
      return {};
    });
  }

 private:
  std::string replacement_;
  Pattern pattern_;
  Prepend prepend_;
  bool splits_;
};

using PreTokenizerResult = Result<std::unique_ptr<PreTokenizer>>;

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PreTokenizerResult read_byte_level(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"add_prefix_space", "trim_offsets"}, {"use_regex"}));
  ACCORD_ASSIGN_OR_RETURN(const bool add_prefix_space, node.at("add_prefix_space").boolean());
  ACCORD_ASSIGN_OR_RETURN(const bool uses_regex, boolean_or(node, "use_regex", true));
  std::optional<Pattern> pattern;
  if (uses_regex) {
    ACCORD_ASSIGN_OR_RETURN(pattern, Pattern::of_regex(kGpt2));
  }
  return PreTokenizerResult(std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, std::move(pattern)));
}

PreTokenizerResult read_metaspace_pre_tokenizer(const JsonNode& node) {
  constexpr std::array<std::string_view, 3> kSchemes = {"first", "never", "always"};
  ACCORD_RETURN_IF_ERROR(
      check_component(node, {"replacement"}, {"prepend_scheme", "add_prefix_space", "split", "str_rep"}));
  ACCORD_ASSIGN_OR_RETURN(std::string replacement, read_character(node.at("replacement")));
  ACCORD_ASSIGN_OR_RETURN(const bool adds_prefix, boolean_or(node, "add_prefix_space", true));
  ACCORD_ASSIGN_OR_RETURN(const bool splits, boolean_or(node, "split", true));
  auto prepend = adds_prefix ? MetaspacePreTokenizer::Prepend::kAlways : MetaspacePreTokenizer::Prepend::kNever;
  if (node.has("prepend_scheme")) {
    const JsonNode scheme_node = node.at("prepend_scheme");
    ACCORD_ASSIGN_OR_RETURN(const std::string scheme, scheme_node.text());
    const auto found = std::ranges::find(kSchemes, scheme);
    if (found == kSchemes.end()) return scheme_node.error(unknown_name("scheme", scheme, kSchemes).message());
    prepend = static_cast<MetaspacePreTokenizer::Prepend>(found - kSchemes.begin());
    if (!adds_prefix && prepend != MetaspacePreTokenizer::Prepend::kNever) {
      return scheme_node.error("prepend_scheme must be \"never\" because add_prefix_space is false");
    }
  }
  return PreTokenizerResult(std::make_unique<MetaspacePreTokenizer>(std::move(replacement), prepend, splits));
}

PreTokenizerResult read_split_pre_tokenizer(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"pattern", "behavior", "invert"}));
  ACCORD_ASSIGN_OR_RETURN(Pattern pattern, Pattern::read(node.at("pattern")));
  ACCORD_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_split_behavior(node.at("behavior")));
  ACCORD_ASSIGN_OR_RETURN(const bool is_inverted, node.at("invert").boolean());
  return PreTokenizerResult(std::make_unique<SplitPreTokenizer>(std::move(pattern), behavior, is_inverted));
}

PreTokenizerResult read_pre_tokenizer(const JsonNode& node) {
  constexpr std::array<std::string_view, 9> kTypes = {"BertPreTokenizer", "ByteLevel",       "Metaspace",
                                                      "Whitespace",       "Sequence",        "Split",
                                                      "Punctuation",      "WhitespaceSplit", "Digits"};
  ACCORD_ASSIGN_OR_RETURN(const std::string type, component_type(node, "pre_tokenizer", kTypes));
  if (type == "ByteLevel") return read_byte_level(node);
  if (type == "Metaspace") return read_metaspace_pre_tokenizer(node);
  if (type == "Split") return read_split_pre_tokenizer(node);
  const auto at_characters = [](SplitCharacters::IsOne is_one, SplitBehavior behavior) {
    return PreTokenizerResult(std::make_unique<SplitCharacters>(is_one, behavior));
  };
  if (type == "Digits") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"individual_digits"}));
    ACCORD_ASSIGN_OR_RETURN(const bool each, node.at("individual_digits").boolean());
    return at_characters(is_numeric, each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {}, {"behavior"}));
    auto behavior = SplitBehavior::kIsolated;
    if (node.has("behavior")) {
      ACCORD_ASSIGN_OR_RETURN(behavior, read_split_behavior(node.at("behavior")));
    }
    return at_characters(is_punctuation, behavior);
  }
  ACCORD_RETURN_IF_ERROR(check_component(node, {}));
  if (type == "Whitespace") return PreTokenizerResult(std::make_unique<WhitespacePreTokenizer>());
  if (type == "BertPreTokenizer") return PreTokenizerResult(std::make_unique<BertPreTokenizer>());
  return at_characters(is_space, SplitBehavior::kRemoved);
}

}  // namespace

Result<PreTokenizers> read_pre_tokenizers(const JsonNode& node) {
  PreTokenizers result;
  if (node.json().is_null()) return result;
  ByteLevelPreTokenizer* last_bytes = nullptr;
  const auto read = [&](const JsonNode& item) -> PreTokenizerResult {
    ACCORD_ASSIGN_OR_RETURN(auto one, read_pre_tokenizer(item));
    last_bytes = dynamic_cast<ByteLevelPreTokenizer*>(one.get());
    return PreTokenizerResult(std::move(one));
  };
  ACCORD_RETURN_IF_ERROR(read_sequence(node, "pretokenizers", result.list, read));
  result.ends_in_bytes = last_bytes != nullptr;
  if (last_bytes != nullptr) last_bytes->encode_words = false;
  return result;
}

}  // namespace accord::tokenizer
