#pragma once
// A tokenizer.json, read once. Its two long lists, the vocabulary and the merges, are most of it and go straight into vectors; the
// rest becomes a tree. As a tree the lists took half of the time to load, and half of that again to be let go of.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accord/tokenizer.hpp"
#include "base/json_node.hpp"

namespace accord::tokenizer {

/// What the file has at model.vocab, if that is an object, and at model.merges, if that is a list.
struct ModelLists {
  std::optional<std::vector<std::pair<std::string, TokenId>>> vocab;
  std::optional<std::vector<std::pair<std::string, std::string>>> merges;  ///< of texts "a b" or pairs ["a", "b"]
};

struct TokenizerFile {
  std::unique_ptr<JsonNode::Json> tree = std::make_unique<JsonNode::Json>();  ///< null where the lists were
  ModelLists lists;

  /// kCorrupt if `text` is no JSON, or an entry of a list is not of its kind.
  static Result<TokenizerFile> parse(std::string_view text, std::string_view name);
};

}  // namespace accord::tokenizer
