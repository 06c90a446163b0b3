#include "tokenizer/vocabulary.hpp"

namespace accord::tokenizer {

Result<Vocabulary> Vocabulary::make(std::optional<std::vector<std::pair<std::string, TokenId>>> tokens,
                                    const JsonNode& node) {
  if (!tokens) return node.error("expected an object of tokens and their ids");
  Vocabulary result;
  result.tokens_ = *std::move(tokens);
  result.ids_.reserve(result.tokens_.size());
  result.by_id_.reserve(result.tokens_.size());
  for (const auto& [token, id] : result.tokens_) {
    if (!result.ids_.emplace(token, id).second) return node.error(fmt::format("{} appears twice", quoted_text(token)));
    const auto [other, is_new] = result.by_id_.emplace(id, token);
    if (!is_new) {
      return node.error(
          fmt::format("{} and {} have the same id, {}", quoted_text(other->second), quoted_text(token), id));
    }
  }
  return result;
}

ByteTokens byte_tokens(const Vocabulary& vocabulary) {
  ByteTokens tokens;
  for (std::size_t byte = 0; byte < tokens.size(); ++byte)
    tokens[byte] = vocabulary.id_of(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
  return tokens;
}

Result<TokenId> read_token_id(const JsonNode& node) {
  const auto& json = node.json();
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > kMaxTokenId) {
    return node.error("expected a non-negative integer of up to 31 bits");
  }
  return json.get<TokenId>();
}

}  // namespace accord::tokenizer
