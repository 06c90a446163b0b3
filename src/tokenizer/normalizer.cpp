#include "tokenizer/normalizer.hpp"

#include <array>

#include "tokenizer/characters.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/normal_form.hpp"
#include "tokenizer/pattern.hpp"
#include "tokenizer/precompiled.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

// Keeps the characters of `text` for which `keep(character, out)` returns true. `keep` may append other text to `out`
// instead.
template <typename Keep>
void filter(NormalText& text, Keep keep) {
  std::string kept;
  kept.reserve(text.text.size());
  for (std::size_t at = 0; at < text.text.size();) {
    const std::size_t begin = at;
    const std::size_t before = kept.size();
    if (keep(next_character(text.text, at), kept)) kept.append(text.text, begin, at - begin);
    if (begin == 0 && kept.size() == before) text.begins_input = false;
  }
  text.text = std::move(kept);
}

class NormalForms : public Normalizer {
 public:
  explicit NormalForms(NormalForm form) : form_(form) {}
  Status apply(NormalText& text) const override {
    text.text = normal_form(text.text, form_);
    return {};
  }

 private:
  NormalForm form_;
};

void lower(NormalText& text) {
  filter(text, [](char32_t c, std::string& out) {
    append_lower(c, out);
    return false;
  });
}

class Lowercase : public Normalizer {
 public:
  Status apply(NormalText& text) const override {
    lower(text);
    return {};
  }
};

class StripAccents : public Normalizer {
 public:
  Status apply(NormalText& text) const override {
    filter(text, [](char32_t c, std::string&) { return !is_mark(c); });
    return {};
  }
};

/// SentencePiece's rules for translation: drops control characters, and takes several others for spaces.
class Nmt : public Normalizer {
 public:
  Status apply(NormalText& text) const override {
    filter(text, [](char32_t c, std::string& out) {
      const bool is_dropped =
          (c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
      if (is_dropped) return false;
      const bool is_blank = c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 ||
                            (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff ||
                            c == 0xfffd;
      if (!is_blank) return true;
      out += ' ';
      return false;
    });
    return {};
  }
};

class BertNormalizer : public Normalizer {
 public:
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;

  Status apply(NormalText& text) const override {
    if (clean_text) {
      filter(text, [](char32_t c, std::string& out) {
        if (is_cleaned(c)) return false;
        if (!is_space(c)) return true;
        out += ' ';
        return false;
      });
    }
    if (handle_chinese_chars) {
      filter(text, [](char32_t c, std::string& out) {
        if (!is_chinese(c)) return true;
        out += ' ';
        append_character(c, out);
        out += ' ';
        return false;
      });
    }
    if (strip_accents) {
      text.text = normal_form(text.text, NormalForm::kNfd);
      filter(text, [](char32_t c, std::string&) { return !is_nonspacing_mark(c); });
    }
    if (lowercase) lower(text);
    return {};
  }
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Status apply(NormalText& text) const override {
    std::string result;
    result.reserve(text.text.size());
    std::size_t copied = 0;
    ACCORD_RETURN_IF_ERROR(pattern_.for_each(text.text, [&](const Match& match) {
      result.append(text.text, copied, match.begin - copied).append(content_);
      if (match.begin == 0 && match.end > 0) {
        // The replacement of several characters counts as coming from the last of them.
        std::size_t first = 0;
        next_character(text.text, first);
        if (content_.empty() || first < match.end) text.begins_input = false;
      }
      copied = match.end;
    }));
    if (copied == 0 && result.empty()) return {};
    text.text = std::move(result.append(text.text, copied));
    return {};
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  Status apply(NormalText& text) const override {
    if (!text.text.empty()) text.text.insert(0, prefix_);
    return {};
  }

 private:
  std::string prefix_;
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  Status apply(NormalText& text) const override {
    std::size_t begin = 0;
    std::size_t end = 0;  // after the last non-space character
    bool is_leading = true;
    for (std::size_t at = 0; at < text.text.size();) {
      if (is_space(next_character(text.text, at))) {
        if (is_leading) begin = at;
      } else {
        is_leading = false;
        end = at;
      }
    }
    if (!left_) begin = 0;
    if (!right_) end = text.text.size();
    if (begin > 0) text.begins_input = false;
    text.text = end > begin ? text.text.substr(begin, end - begin) : "";
    return {};
  }

 private:
  bool left_;
  bool right_;
};

using NormalizerResult = Result<std::unique_ptr<Normalizer>>;

NormalizerResult read_bert_normalizer(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"clean_text", "handle_chinese_chars", "lowercase"}, {"strip_accents"}));
  auto result = std::make_unique<BertNormalizer>();
  ACCORD_ASSIGN_OR_RETURN(result->clean_text, node.at("clean_text").boolean());
  ACCORD_ASSIGN_OR_RETURN(result->handle_chinese_chars, node.at("handle_chinese_chars").boolean());
  ACCORD_ASSIGN_OR_RETURN(result->lowercase, node.at("lowercase").boolean());
  ACCORD_ASSIGN_OR_RETURN(result->strip_accents, boolean_or(node, "strip_accents", result->lowercase));
  return NormalizerResult(std::move(result));
}

NormalizerResult read_normalizer(const JsonNode& node) {
  constexpr std::array<std::string_view, 13> kTypes = {
      "BertNormalizer", "Strip",   "StripAccents", "NFC", "NFD",         "NFKC",    "NFKD",
      "Lowercase",      "Replace", "Prepend",      "Nmt", "Precompiled", "Sequence"};
  ACCORD_ASSIGN_OR_RETURN(const std::string type, component_type(node, "normalizer", kTypes));
  if (type == "BertNormalizer") return read_bert_normalizer(node);
  if (type == "Precompiled") return read_precompiled(node);
  if (type == "Replace") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"pattern", "content"}));
    ACCORD_ASSIGN_OR_RETURN(Pattern pattern, Pattern::read(node.at("pattern")));
    ACCORD_ASSIGN_OR_RETURN(std::string content, node.at("content").text());
    return NormalizerResult(std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content)));
  }
  if (type == "Prepend") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"prepend"}));
    ACCORD_ASSIGN_OR_RETURN(std::string prefix, node.at("prepend").text());
    return NormalizerResult(std::make_unique<PrependNormalizer>(std::move(prefix)));
  }
  if (type == "Strip") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"strip_left", "strip_right"}));
    ACCORD_ASSIGN_OR_RETURN(const bool left, node.at("strip_left").boolean());
    ACCORD_ASSIGN_OR_RETURN(const bool right, node.at("strip_right").boolean());
    return NormalizerResult(std::make_unique<StripNormalizer>(left, right));
  }
  ACCORD_RETURN_IF_ERROR(check_component(node, {}));
  if (type == "Nmt") return NormalizerResult(std::make_unique<Nmt>());
  if (type == "Lowercase") return NormalizerResult(std::make_unique<Lowercase>());
  if (type == "StripAccents") return NormalizerResult(std::make_unique<StripAccents>());
  const NormalForm form = type == "NFC"    ? NormalForm::kNfc
                          : type == "NFD"  ? NormalForm::kNfd
                          : type == "NFKC" ? NormalForm::kNfkc
                                           : NormalForm::kNfkd;
  return NormalizerResult(std::make_unique<NormalForms>(form));
}

}  // namespace

Result<std::vector<std::unique_ptr<Normalizer>>> read_normalizers(const JsonNode& node) {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  if (!node.json().is_null()) ACCORD_RETURN_IF_ERROR(read_sequence(node, "normalizers", normalizers, read_normalizer));
  return normalizers;
}

}  // namespace accord::tokenizer
