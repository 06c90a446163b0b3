#include "tokenizer/vocabulary.hpp"

namespace accord::tokenizer {

Result<Vocabulary> Vocabulary::make(std::optional<std::vector<std::pair<std::string, TokenId>>> tokens,
                                    const JsonNode& node) {
  if (!tokens) return node.error("expected an object of tokens and their ids");
  Vocabulary made;
  made.tokens_ = *std::move(tokens);
  made.ids_.reserve(made.tokens_.size());
  made.by_id_.reserve(made.tokens_.size());
  for (const auto& [token, id] : made.tokens_) {
    if (!made.ids_.emplace(token, id).second) return node.error(fmt::format("{} comes twice", quoted_text(token)));
    const auto [other, is_new] = made.by_id_.emplace(id, token);
    if (!is_new) {
      return node.error(fmt::format("{} and {} have one id, {}", quoted_text(other->second), quoted_text(token), id));
    }
  }
  return made;
}

Result<TokenId> read_token_id(const JsonNode& node) {
  const auto& json = node.json();
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > kMostTokenId) {
    return node.error("expected a whole number of 31 bits");
  }
  return json.get<TokenId>();
}

}  // namespace accord::tokenizer
