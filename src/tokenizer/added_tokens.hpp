#pragma once
// Tokens beside the model's vocabulary, found in the text as a whole before it is split: "<|im_start|>", "[MASK]".

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
  bool single_word = false;  ///< found only where no word character is beside it
  bool lstrip = false;       ///< takes the spaces before it
  bool rstrip = false;
  bool normalized = true;  ///< looked for after normalization, in its normalized form
  bool special = false;
};

/// A stretch of a text: an added token, or what is between them.
struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;
  const AddedToken* token = nullptr;
};

/// Finds the leftmost, and of those the longest, of a set of texts. A trie; most characters fail at its root.
class TokenTrie {
 public:
  /// False if it is there already. REQUIRES: not empty.
  bool insert(std::string_view text, const AddedToken* token);
  /// The stretches of `text`, in order, none of them empty; they cover it.
  void find(std::string_view text, std::vector<Stretch>& stretches) const;

 private:
  struct Node {
    std::vector<std::pair<char, std::uint32_t>> children;
    const AddedToken* token = nullptr;
  };
  std::uint32_t child_of(std::uint32_t node, char byte) const;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_ = {};  // whether a text begins with this byte
};

class AddedTokens {
 public:
  /// The file's "added_tokens". kCorrupt if one has an id that is not the one it has in `vocabulary`, or not the next free one.
  static Result<AddedTokens> read(const JsonNode& node, const Vocabulary& vocabulary,
                                  const std::vector<std::unique_ptr<Normalizer>>& normalizers);

  /// Those that are looked for in the text as it comes, and those that are looked for in its normalized form.
  const TokenTrie& of_input() const { return of_input_; }
  const TokenTrie& of_normalized() const { return of_normalized_; }

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(TokenId id) const;
  /// What a decoder is given for it: its normalized form, where it has one.
  const std::string& decoded_text(const AddedToken& token) const { return decoded_.at(token.id); }
  bool is_special(std::string_view text) const { return special_.contains(text); }
  /// How many are not in the model's vocabulary.
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
