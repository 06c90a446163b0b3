#pragma once
// How a text is split into the words that the model sees one by one.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

/// A word: a stretch of the text.
struct Word {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool begins_input = false;  ///< whether it begins with the first character of what the caller gave
};

/// A text and the words that it falls into, none of them empty.
struct Words {
  std::string text;
  std::vector<Word> list;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Splits each word further; may write the text anew.
  virtual Status apply(Words& words) const = 0;
};

/// The file's "pre_tokenizer"; sequences are flattened.
struct PreTokenizers {
  std::vector<std::unique_ptr<PreTokenizer>> list;
  /// The last one is ByteLevel: words reach the model as bytes, each of which stands for its character of GPT-2's alphabet. It need
  /// not be spelled out word by word.
  bool ends_in_bytes = false;
};
Result<PreTokenizers> read_pre_tokenizers(const JsonNode& node);

}  // namespace accord::tokenizer
