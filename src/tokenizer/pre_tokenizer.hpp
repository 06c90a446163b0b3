#pragma once
// Splits a text into the words that the model processes one at a time.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

/// A word: a section of the text.
struct Word {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool begins_input = false;  ///< true if it begins with the first character of the caller's text
};

/// A text and the words into which it is split. No word is empty.
struct Words {
  std::string text;
  std::vector<Word> list;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits each word further; may rewrite the text.
  virtual Status apply(Words& words) const = 0;
};

/// The file's "pre_tokenizer", with sequences flattened.
struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> list;
  /// True if the last one is ByteLevel. Words then reach the model as bytes, each of which stands for its character
  /// in GPT-2's alphabet, so they need not be spelled out.
  bool ends_in_bytes = false;
};
Result<PreTokenizers> read_pre_tokenizers(const JsonNode& node);

}  // namespace accord::tokenizer
