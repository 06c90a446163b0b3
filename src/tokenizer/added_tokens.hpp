#pragma once
// Tokens in addition to the model's vocabulary, such as "<|im_start|>" and "[MASK]". They are found in the whole text
// before it is split.

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/normalizer.hpp"
#include "tokenizer/vocabulary.hpp"

namespace accord::tokenizer {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;  ///< matches only if no word character is next to it
  bool lstrip = false;       ///< includes the spaces before it; rstrip those after it
  bool rstrip = false;
  bool normalized = true;  ///< searched for after normalization, in its normalized form
  bool special = false;
};

/// A section of a text: an added token, or the text between two of them.
struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;
  const AddedToken* token = nullptr;
};

/// Finds the leftmost match of a set of texts, and the longest one at that position. A trie; most characters fail at
/// its root.
class TokenTrie {
 public:
  /// Returns false if the text is already present. REQUIRES: `text` is not empty.
  bool insert(std::string_view text, const AddedToken* token);
  /// Splits `text` into stretches, in order. None is empty, and together they cover the text.
  void find(std::string_view text, std::vector<Stretch>& stretches) const;

 private:
  struct Node {
    std::vector<std::pair<char, std::uint32_t>> children;
    const AddedToken* token = nullptr;
  };
  std::uint32_t child_of(std::uint32_t node, char byte) const;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_ = {};  // true if a text begins with this byte
};

class AddedTokens {
 public:
  /// Reads the file's "added_tokens". Fails with kCorrupt if the id of a token that is in `vocabulary` differs from
  /// its id there, or if the id of another token is not the next free one.
  static Result<AddedTokens> read(const JsonNode& node, const Vocabulary& vocabulary,
                                  const std::vector<std::unique_ptr<Normalizer>>& normalizers);

  /// The tokens that are searched for in the raw input, and those that are searched for in the normalized text.
  const TokenTrie& of_input() const { return of_input_; }
  const TokenTrie& of_normalized() const { return of_normalized_; }

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(TokenId id) const;
  /// The text that decoders receive for `token`: its normalized form, if it has one.
  const std::string& decoded_text(const AddedToken& token) const { return decoded_.at(token.id); }
  bool is_special(std::string_view text) const { return special_.contains(text); }
  /// Number of added tokens that are not in the model's vocabulary.
  std::size_t count_beyond(const Vocabulary& vocabulary) const;

 private:
  std::vector<std::unique_ptr<AddedToken>> tokens_;
  std::unordered_map<std::string_view, const AddedToken*> by_content_;
  std::unordered_map<TokenId, const AddedToken*> by_id_;
  std::unordered_map<TokenId, std::string> decoded_;
  std::unordered_set<std::string_view> special_;
  TokenTrie of_input_;
  TokenTrie of_normalized_;
};

}  // namespace accord::tokenizer
