#pragma once
// A tokenizer.json file, read once. Most of it consists of two long lists, the vocabulary and the merges, which are
// read directly into vectors; the rest becomes a tree. With these lists in the tree, building them took half of the
// load time, and freeing them half of that again.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accord/tokenizer.hpp"
#include "base/json_node.hpp"

namespace accord::tokenizer {

/// Tokens in the order of their ids.
using ScoredTokens = std::vector<std::pair<std::string, double>>;

/// The file's values at model.vocab, which is an object or a list, and at model.merges, if that is a list.
struct ModelLists {
  std::optional<std::vector<std::pair<std::string, TokenId>>> vocab;
  std::optional<ScoredTokens> scores;                                      ///< from pairs ["a", -1.5]
  std::optional<std::vector<std::pair<std::string, std::string>>> merges;  ///< from texts "a b" or pairs ["a", "b"]
};

struct TokenizerFile {
  std::unique_ptr<JsonNode::Json> tree = std::make_unique<JsonNode::Json>();  ///< null in place of the lists
  ModelLists lists;

  /// Fails with kCorrupt if `text` is not JSON, or if an entry of a list has the wrong type.
  static Result<TokenizerFile> parse(std::string_view text, std::string_view name);
};

}  // namespace accord::tokenizer
