#include "tokenizer/decoder.hpp"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

class ByteLevelDecoder : public Decoder {
 public:
  Status apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (std::string& token : tokens) bytes += decode_bytes(token).value_or(token);
    tokens.clear();
    tokens.push_back(well_formed(bytes));
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined /*joined*/) const override {
    return decode_bytes(token).value_or(token);
  }
  bool joins() const override { return true; }
};

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
}

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleans_up) : prefix_(std::move(prefix)), cleans_up_(cleans_up) {}
  Status apply(std::vector<std::string>& tokens) const override {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCleanUp = {{{" .", "."},
                                                                                         {" ?", "?"},
                                                                                         {" !", "!"},
                                                                                         {" ,", ","},
                                                                                         {" ' ", "'"},
                                                                                         {" n't", "n't"},
                                                                                         {" 'm", "'m"},
                                                                                         {" do not", " don't"},
                                                                                         {" 's", "'s"},
                                                                                         {" 've", "'ve"},
                                                                                         {" 're", "'re"}}};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) attach(token);
      if (!cleans_up_) continue;
      for (const auto& [what, by] : kCleanUp) replace_all(token, what, by);
    }
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined /*joined*/) const override {
    attach(token);
    return token;
  }

 private:
  void attach(std::string& token) const {
    if (token.starts_with(prefix_)) {
      token.erase(0, prefix_.size());
    } else {
      token.insert(token.begin(), ' ');
    }
  }

  std::string prefix_;
  bool cleans_up_;
};

class MetaspaceDecoder : public Decoder {
 public:
  MetaspaceDecoder(std::string replacement, bool prepends)
      : replacement_(std::move(replacement)), prepends_(prepends) {}
  Status apply(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      replace_all(tokens[i], replacement_, i == 0 && prepends_ ? "" : " ");
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined /*joined*/) const override {
    replace_all(token, replacement_, " ");
    return token;
  }

 private:
  std::string replacement_;
  bool prepends_;
};

// Tokens like <0xE2> are bytes. A run of bytes that is not valid UTF-8 becomes one U+FFFD per byte.
class ByteFallback : public Decoder {
 public:
  Status apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> result;
    std::string run;
    const auto end_run = [&] {
      if (run.empty()) return;
      if (is_well_formed(run)) {
        result.push_back(run);
      } else {
        result.insert(result.end(), run.size(), std::string(kReplacement));
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of_token(token)) {
        run.push_back(static_cast<char>(*byte));
        continue;
      }
      end_run();
      result.push_back(std::move(token));
    }
    end_run();
    tokens = std::move(result);
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined /*joined*/) const override {
    const auto byte = byte_of_token(token);
    return byte ? std::string(1, static_cast<char>(*byte)) : token;
  }

 private:
  static std::optional<unsigned char> byte_of_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    unsigned char byte = 0;
    const auto read = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
    return read.ec == std::errc() && read.ptr == token.data() + 5 ? std::optional(byte) : std::nullopt;
  }
};

class Fuse : public Decoder {
 public:
  Status apply(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens.clear();
    tokens.push_back(std::move(text));
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined /*joined*/) const override { return token; }
  bool joins() const override { return true; }
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Status apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      ACCORD_ASSIGN_OR_RETURN(token, apply_inside(std::move(token), Joined::kNo));
    }
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined /*joined*/) const override {
    std::string result;
    std::size_t copied = 0;
    ACCORD_RETURN_IF_ERROR(pattern_.for_each(token, [&](const Match& match) {
      result.append(token, copied, match.begin - copied).append(content_);
      copied = match.end;
    }));
    return std::move(result.append(token, copied));
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Strips up to a given number of one character from each end of each text.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, int start, int stop) : content_(std::move(content)), start_(start), stop_(stop) {}
  Status apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = stripped(token);
    return {};
  }
  Result<std::string> apply_inside(std::string token, Joined joined) const override {
    return joined == Joined::kYes ? token : stripped(token);
  }

 private:
  std::string stripped(const std::string& token) const {
    std::string_view left = token;
    for (int i = 0; i < start_ && left.starts_with(content_); ++i) left.remove_prefix(content_.size());
    for (int i = 0; i < stop_ && left.ends_with(content_); ++i) left.remove_suffix(content_.size());
    return std::string(left);
  }

  std::string content_;
  int start_;
  int stop_;
};

using DecoderResult = Result<std::unique_ptr<Decoder>>;

DecoderResult read_metaspace_decoder(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(
      check_component(node, {"replacement"}, {"prepend_scheme", "add_prefix_space", "split", "str_rep"}));
  ACCORD_ASSIGN_OR_RETURN(std::string replacement, read_character(node.at("replacement")));
  ACCORD_ASSIGN_OR_RETURN(const bool adds_prefix, boolean_or(node, "add_prefix_space", true));
  const bool never = node.has("prepend_scheme") && node.at("prepend_scheme").json() == "never";
  return DecoderResult(std::make_unique<MetaspaceDecoder>(std::move(replacement), adds_prefix && !never));
}

DecoderResult read_strip_decoder(const JsonNode& node) {
  constexpr int kMaxCount = 1 << 20;
  ACCORD_RETURN_IF_ERROR(check_component(node, {"content", "start", "stop"}));
  ACCORD_ASSIGN_OR_RETURN(std::string content, read_character(node.at("content")));
  ACCORD_ASSIGN_OR_RETURN(const int start, node.at("start").integer(0, kMaxCount));
  ACCORD_ASSIGN_OR_RETURN(const int stop, node.at("stop").integer(0, kMaxCount));
  return DecoderResult(std::make_unique<StripDecoder>(std::move(content), start, stop));
}

DecoderResult read_decoder(const JsonNode& node) {
  constexpr std::array<std::string_view, 8> kTypes = {"ByteLevel", "WordPiece", "Metaspace", "ByteFallback",
                                                      "Fuse",      "Replace",   "Strip",     "Sequence"};
  ACCORD_ASSIGN_OR_RETURN(const std::string type, component_type(node, "decoder", kTypes));
  if (type == "Metaspace") return read_metaspace_decoder(node);
  if (type == "Strip") return read_strip_decoder(node);
  if (type == "ByteLevel") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {}, {"add_prefix_space", "trim_offsets", "use_regex"}));
    return DecoderResult(std::make_unique<ByteLevelDecoder>());
  }
  if (type == "WordPiece") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"prefix", "cleanup"}));
    ACCORD_ASSIGN_OR_RETURN(std::string prefix, node.at("prefix").text());
    ACCORD_ASSIGN_OR_RETURN(const bool cleans_up, node.at("cleanup").boolean());
    return DecoderResult(std::make_unique<WordPieceDecoder>(std::move(prefix), cleans_up));
  }
  if (type == "Replace") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"pattern", "content"}));
    ACCORD_ASSIGN_OR_RETURN(Pattern pattern, Pattern::read(node.at("pattern")));
    ACCORD_ASSIGN_OR_RETURN(std::string content, node.at("content").text());
    return DecoderResult(std::make_unique<ReplaceDecoder>(std::move(pattern), std::move(content)));
  }
  ACCORD_RETURN_IF_ERROR(check_component(node, {}));
  if (type == "Fuse") return DecoderResult(std::make_unique<Fuse>());
  return DecoderResult(std::make_unique<ByteFallback>());
}

}  // namespace

Result<Decoders> read_decoders(const JsonNode& node) {
  Decoders result;
  result.joins_by_space = node.json().is_null();
  if (!result.joins_by_space) ACCORD_RETURN_IF_ERROR(read_sequence(node, "decoders", result.list, read_decoder));
  return result;
}

}  // namespace accord::tokenizer
