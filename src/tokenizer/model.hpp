#pragma once
// Models, which turn words into tokens.

#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer_file.hpp"
#include "tokenizer/vocabulary.hpp"

namespace accord::tokenizer {

/// The form of a word.
enum class WordForm : std::uint8_t {
  kText,
  kBytes,  ///< each byte stands for its character in GPT-2's alphabet
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const Vocabulary& vocabulary() const = 0;
  /// Appends the tokens of a word. Fails with kInvalidArgument if the word cannot be split into tokens and the model
  /// has no token for unknown words.
  virtual Status encode(std::string_view word, WordForm form, std::vector<TokenId>& ids) const = 0;
};

/// Reads the file's "model", BPE, WordPiece or Unigram, and its lists.
Result<std::unique_ptr<Model>> read_model(const JsonNode& node, ModelLists lists);

Result<std::unique_ptr<Model>> read_bpe(const JsonNode& node, ModelLists lists);
Result<std::unique_ptr<Model>> read_word_piece(const JsonNode& node, ModelLists lists);
Result<std::unique_ptr<Model>> read_unigram(const JsonNode& node, ModelLists lists);

}  // namespace accord::tokenizer
