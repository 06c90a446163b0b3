#pragma once
// Tokens and their ids.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accord/tokenizer.hpp"
#include "base/json_node.hpp"

namespace accord::tokenizer {

class Vocabulary {
 public:
  /// Fails with kCorrupt if a token or an id occurs twice. `node`: the source of the tokens, for errors.
  static Result<Vocabulary> make(std::optional<std::vector<std::pair<std::string, TokenId>>> tokens,
                                 const JsonNode& node);

  std::size_t size() const { return tokens_.size(); }
  std::optional<TokenId> id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::string_view> token_of(TokenId id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? std::nullopt : std::optional(found->second);
  }

  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

 private:
  Vocabulary() = default;
  std::vector<std::pair<std::string, TokenId>> tokens_;  // owns the text of the maps' views
  std::unordered_map<std::string_view, TokenId> ids_;
  std::unordered_map<TokenId, std::string_view> by_id_;
};

inline constexpr TokenId kMaxTokenId = INT32_MAX;

inline constexpr TokenId kNoToken = -1;
/// The ids of the tokens <0x00> to <0xFF>, which stand for bytes; kNoToken where the vocabulary has none.
using ByteTokens = std::array<TokenId, 256>;
ByteTokens byte_tokens(const Vocabulary& vocabulary);

/// Reads an id of up to 31 bits.
Result<TokenId> read_token_id(const JsonNode& node);

}  // namespace accord::tokenizer
