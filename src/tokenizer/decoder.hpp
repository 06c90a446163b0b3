#pragma once
// Decoders, which turn tokens into text.

#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Rewrites the list of texts; at the end they are joined.
  virtual Status apply(std::vector<std::string>& tokens) const = 0;
};

/// The file's "decoder", with sequences flattened.
struct Decoders {
  std::vector<std::unique_ptr<Decoder>> list;
  bool joins_by_space = false;  ///< true without a decoder: tokens are joined by spaces
};
Result<Decoders> read_decoders(const JsonNode& node);

}  // namespace accord::tokenizer
