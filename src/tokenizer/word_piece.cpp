// WordPiece: from left to right, always takes the longest token that fits. Tokens that do not begin the word have a
// prefix ("##"). A word that cannot be split into tokens, or that is too long, is unknown as a whole.

#include <algorithm>
#include <array>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/model.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

constexpr int kMaxCharacters = 4096;  // per word; the time for a word is quadratic in its length

class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, TokenId unknown, std::string prefix, std::size_t max_characters)
      : vocabulary_(std::move(vocabulary)),
        unknown_(unknown),
        prefix_(std::move(prefix)),
        max_characters_(max_characters) {}

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  Status encode(std::string_view word, WordForm form, std::vector<TokenId>& ids) const override {
    if (form == WordForm::kBytes) return encode(encode_bytes(word), WordForm::kText, ids);
    const auto begins_character = [](char c) { return (c & 0xc0) != 0x80; };
    const std::size_t before = ids.size();
    bool is_known = static_cast<std::size_t>(std::ranges::count_if(word, begins_character)) <= max_characters_;
    std::string text;
    for (std::size_t at = 0; is_known && at < word.size();) {
      text.assign(at > 0 ? prefix_ : "").append(word.substr(at));
      const std::size_t shortest = text.size() - (word.size() - at) + 1;
      std::optional<TokenId> id;
      while (text.size() >= shortest && !(id = vocabulary_.id_of(text))) {
        while (!begins_character(text.back())) text.pop_back();
        text.pop_back();
      }
      is_known = id.has_value();
      if (!is_known) break;
      ids.push_back(*id);
      at += text.size() - shortest + 1;
    }
    if (!is_known) {
      ids.resize(before);
      ids.push_back(unknown_);
    }
    return {};
  }

 private:
  Vocabulary vocabulary_;
  TokenId unknown_;
  std::string prefix_;
  std::size_t max_characters_;
};

}  // namespace

Result<std::unique_ptr<Model>> read_word_piece(const JsonNode& node, ModelLists lists) {
  ACCORD_RETURN_IF_ERROR(
      check_component(node, {"unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"}));
  ACCORD_ASSIGN_OR_RETURN(const std::string unknown, node.at("unk_token").text());
  ACCORD_ASSIGN_OR_RETURN(std::string prefix, node.at("continuing_subword_prefix").text());
  ACCORD_ASSIGN_OR_RETURN(const int max_characters, node.at("max_input_chars_per_word").integer(0, kMaxCharacters));
  ACCORD_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::make(std::move(lists.vocab), node.at("vocab")));
  const auto id = vocabulary.id_of(unknown);
  if (!id) return node.at("unk_token").error(fmt::format("the vocabulary has no token {}", quoted_text(unknown)));
  return std::unique_ptr<Model>(std::make_unique<WordPiece>(std::move(vocabulary), *id, std::move(prefix),
                                                            static_cast<std::size_t>(max_characters)));
}

Result<std::unique_ptr<Model>> read_model(const JsonNode& node, ModelLists lists) {
  // Older files have no "type"; those are BPE if they have merges.
  const bool is_typed = !node.json().is_object() || node.has("type");
  if (!is_typed) return node.has("merges") ? read_bpe(node, std::move(lists)) : read_word_piece(node, std::move(lists));
  constexpr std::array<std::string_view, 3> kTypes = {"BPE", "WordPiece", "Unigram"};
  ACCORD_ASSIGN_OR_RETURN(const std::string type, component_type(node, "model", kTypes));
  if (type == "Unigram") return read_unigram(node, std::move(lists));
  return type == "BPE" ? read_bpe(node, std::move(lists)) : read_word_piece(node, std::move(lists));
}

}  // namespace accord::tokenizer
