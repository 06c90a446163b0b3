#pragma once
// Decoders, which turn tokens into text.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

/// kYes: the decoders before have joined all tokens into one text.
enum class Joined : std::uint8_t { kNo, kYes };

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Rewrites the list of texts; at the end they are joined.
  virtual Status apply(std::vector<std::string>& tokens) const = 0;
  /// Returns what becomes of a token that is neither the first nor the last one: bytes, not always whole characters.
  virtual Result<std::string> apply_inside(std::string token, Joined joined) const = 0;
  /// True if apply() joins the tokens into one text.
  virtual bool joins() const { return false; }
};

/// The file's "decoder", with sequences flattened.
struct Decoders {
  std::vector<std::unique_ptr<Decoder>> list;
  bool joins_by_space = false;  ///< true without a decoder: tokens are joined by spaces
};
Result<Decoders> read_decoders(const JsonNode& node);

}  // namespace accord::tokenizer
