#include "tokenizer/added_tokens.hpp"

#include <algorithm>

#include "tokenizer/characters.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  std::size_t at = text.size() - 1;
  while (!is_boundary(text, at)) --at;
  return is_word(next_character(text, at));
}

bool begins_with_word(std::string_view text) {
  std::size_t at = 0;
  return !text.empty() && is_word(next_character(text, at));
}

// Returns where the spaces at the end of text[0, end) begin, but at least `lower_bound`.
std::size_t begin_of_spaces(std::string_view text, std::size_t lower_bound, std::size_t end) {
  while (end > lower_bound) {
    std::size_t at = end - 1;
    while (!is_boundary(text, at)) --at;
    std::size_t next = at;
    if (!is_space(next_character(text, next))) break;
    end = at;
  }
  return std::max(end, lower_bound);
}

std::size_t end_of_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_space(next_character(text, next))) break;
    at = next;
  }
  return at;
}

Result<AddedToken> read_one(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(
      check_component(node, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  ACCORD_ASSIGN_OR_RETURN(token.id, read_token_id(node.at("id")));
  ACCORD_ASSIGN_OR_RETURN(token.content, node.at("content").text());
  ACCORD_ASSIGN_OR_RETURN(token.single_word, node.at("single_word").boolean());
  ACCORD_ASSIGN_OR_RETURN(token.lstrip, node.at("lstrip").boolean());
  ACCORD_ASSIGN_OR_RETURN(token.rstrip, node.at("rstrip").boolean());
  ACCORD_ASSIGN_OR_RETURN(token.normalized, node.at("normalized").boolean());
  ACCORD_ASSIGN_OR_RETURN(token.special, node.at("special").boolean());
  if (token.content.empty()) return node.at("content").error("is empty");
  return token;
}

}  // namespace

std::uint32_t TokenTrie::child_of(std::uint32_t node, char byte) const {
  const auto& children = nodes_[node].children;
  const auto found = std::ranges::find(children, byte, &std::pair<char, std::uint32_t>::first);
  return found == children.end() ? 0 : found->second;
}

bool TokenTrie::insert(std::string_view text, const AddedToken* token) {
  begins_[static_cast<unsigned char>(text[0])] = true;
  std::uint32_t node = 0;
  for (const char byte : text) {
    std::uint32_t child = child_of(node, byte);
    if (child == 0) {
      child = static_cast<std::uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, child);
      nodes_.emplace_back();
    }
    node = child;
  }
  if (nodes_[node].token != nullptr) return false;
  nodes_[node].token = token;
  return true;
}

void TokenTrie::find(std::string_view text, std::vector<Stretch>& stretches) const {
  std::size_t covered = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = nullptr;
    std::size_t end = at;
    std::uint32_t node = 0;
    for (std::size_t i = at; i < text.size() && (node = child_of(node, text[i])) != 0; ++i) {
      if (nodes_[node].token == nullptr) continue;
      token = nodes_[node].token;
      end = i + 1;
    }
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    at = end;
    const bool is_beside_word = ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end));
    if (token->single_word && is_beside_word) continue;
    if (token->lstrip) begin = begin_of_spaces(text, covered, begin);
    if (token->rstrip) end = end_of_spaces(text, end);
    if (covered < begin) stretches.push_back({covered, begin, nullptr});
    stretches.push_back({begin, end, token});
    covered = end;
  }
  if (covered < text.size()) stretches.push_back({covered, text.size(), nullptr});
}

Result<AddedTokens> AddedTokens::read(const JsonNode& node, const Vocabulary& vocabulary,
                                      const std::vector<std::unique_ptr<Normalizer>>& normalizers) {
  AddedTokens result;
  ACCORD_ASSIGN_OR_RETURN(const auto items, node.items());
  auto next_id = static_cast<TokenId>(vocabulary.size());
  for (const JsonNode& item : items) {
    ACCORD_ASSIGN_OR_RETURN(AddedToken read, read_one(item));
    const AddedToken& token = *result.tokens_.emplace_back(std::make_unique<AddedToken>(std::move(read)));
    const auto in_model = vocabulary.id_of(token.content);
    const TokenId expected = in_model ? *in_model : next_id++;
    if (token.id != expected) {
      return item.at("id").error(fmt::format("{} has id {}, but {} {}", quoted_text(token.content), token.id,
                                             in_model ? "its id in the model's vocabulary is" : "the next free id is",
                                             expected));
    }
    if (!result.by_content_.emplace(token.content, &token).second) {
      return item.error(fmt::format("{} appears twice", quoted_text(token.content)));
    }
    result.by_id_.emplace(token.id, &token);
    if (token.special) result.special_.insert(token.content);
    NormalText text{token.content};
    if (token.normalized) {
      for (const auto& normalizer : normalizers) ACCORD_RETURN_IF_ERROR(normalizer->apply(text));
    }
    if (text.text.empty())
      return item.error(fmt::format("{} is empty after normalization", quoted_text(token.content)));
    if (!(token.normalized ? result.of_normalized_ : result.of_input_).insert(text.text, &token)) {
      return item.error(fmt::format("{} equals an earlier token after normalization", quoted_text(token.content)));
    }
    result.decoded_.emplace(token.id, std::move(text.text));
  }
  return result;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : found->second;
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

std::size_t AddedTokens::count_beyond(const Vocabulary& vocabulary) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(tokens_, [&](const auto& token) { return !vocabulary.id_of(token->content); }));
}

}  // namespace accord::tokenizer
