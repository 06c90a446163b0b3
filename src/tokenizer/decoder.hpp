#pragma once
// What makes text of tokens.

#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Rewrites the list of texts, which are joined in the end.
  virtual Status apply(std::vector<std::string>& tokens) const = 0;
};

/// The file's "decoder"; sequences are flattened.
struct Decoders {
  std::vector<std::unique_ptr<Decoder>> list;
  bool joins_by_space = false;  ///< without a decoder there are spaces between tokens
};
Result<Decoders> read_decoders(const JsonNode& node);

}  // namespace accord::tokenizer
