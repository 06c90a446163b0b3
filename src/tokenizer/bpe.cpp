// Byte pair encoding. A word starts as its characters. Of all neighboring pairs that have a merge, the one with the
// lowest rank (the leftmost of equal ones) becomes one token, until no pair has a merge. Symbols form a linked list
// and candidates a heap: n log n for a word of n characters. A candidate whose symbols have changed in the meantime
// is skipped when it is popped.
//
// Sennrich, Haddow, Birch 2016. Characters that the vocabulary lacks are handled as in the tokenizers library.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/components.hpp"
#include "tokenizer/merge_table.hpp"
#include "tokenizer/model.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;
constexpr std::size_t kMaxKeptSymbols = 1 << 16;  // symbols for which a thread keeps memory between words

struct Symbol {
  TokenId id;
  std::uint32_t previous;
  std::uint32_t next;
};

struct Candidate {
  std::uint32_t rank;
  std::uint32_t at;
  TokenId left;
  TokenId right;
  TokenId merged;
};
struct IsLater {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

struct BpeOptions {
  std::optional<std::string> unk_token, continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

class Bpe : public Model {
 public:
  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
      : vocabulary_(std::move(vocabulary)),
        merges_(std::move(merges)),
        options_(std::move(options)),
        fallback_(byte_tokens(vocabulary_)) {
    if (options_.unk_token) unknown_ = vocabulary_.id_of(*options_.unk_token);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto value = static_cast<char>(byte);
      of_byte_[byte] = vocabulary_.id_of(encode_bytes({&value, 1})).value_or(kNoToken);
    }
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  Status encode(std::string_view word, WordForm form, std::vector<TokenId>& ids) const override {
    const bool is_bytes = form == WordForm::kBytes;
    if (options_.ignore_merges) {
      if (const auto id = vocabulary_.id_of(is_bytes ? encode_bytes(word) : word)) return ids.push_back(*id), Status();
    }
    thread_local std::vector<Symbol> symbols;
    symbols.clear();
    if (!is_bytes || !add_bytes(word, symbols)) {
      symbols.clear();
      ACCORD_RETURN_IF_ERROR(is_bytes ? add_characters(encode_bytes(word), symbols) : add_characters(word, symbols));
    }
    merge(symbols);
    if (!symbols.empty()) {
      for (std::uint32_t at = 0; at != kNone; at = symbols[at].next) ids.push_back(symbols[at].id);
    }
    if (symbols.capacity() > kMaxKeptSymbols) symbols = {};
    return {};
  }

 private:
  static void add(TokenId id, std::vector<Symbol>& symbols) {
    const auto at = static_cast<std::uint32_t>(symbols.size());
    if (at > 0) symbols.back().next = at;
    symbols.push_back({id, at - 1, kNone});  // kNone before the first
  }

  // Returns false if one token per byte does not suffice.
  bool add_bytes(std::string_view word, std::vector<Symbol>& symbols) const {
    if (options_.continuing_subword_prefix || options_.end_of_word_suffix) return false;
    for (const char c : word) {
      const TokenId id = of_byte_[static_cast<unsigned char>(c)];
      if (id == kNoToken) return false;
      add(id, symbols);
    }
    return true;
  }

  Status add_characters(std::string_view word, std::vector<Symbol>& symbols) const {
    std::string text;
    bool is_unknown = false;  // true while a token for unknown characters is still to be added
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t begin = at;
      next_character(word, at);
      text.clear();
      if (begin > 0 && options_.continuing_subword_prefix) text += *options_.continuing_subword_prefix;
      text += word.substr(begin, at - begin);
      if (at == word.size() && options_.end_of_word_suffix) text += *options_.end_of_word_suffix;
      if (const auto id = vocabulary_.id_of(text)) {
        if (is_unknown) add(*unknown_, symbols);
        is_unknown = false;
        add(*id, symbols);
      } else if (!options_.byte_fallback || !add_fallback(text, symbols)) {
        if (!options_.unk_token) continue;  // the character is dropped
        if (!unknown_) {
          return Status(StatusCode::kInvalidArgument,
                        fmt::format("the vocabulary has neither {} nor {}, the token for unknown characters",
                                    quoted_text(text), quoted_text(*options_.unk_token)));
        }
        if (is_unknown && !options_.fuse_unk) add(*unknown_, symbols);
        is_unknown = true;
      }
    }
    if (is_unknown) add(*unknown_, symbols);
    return {};
  }

  // Adds tokens like <0xE2><0x82><0xAC>. Returns false if one of them is missing.
  bool add_fallback(std::string_view text, std::vector<Symbol>& symbols) const {
    const auto id_of = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
    if (std::ranges::any_of(text, [&](char c) { return id_of(c) == kNoToken; })) return false;
    for (const char c : text) add(id_of(c), symbols);
    return true;
  }

  void merge(std::vector<Symbol>& symbols) const {
    thread_local std::vector<Candidate> heap;
    heap.clear();
    const auto candidate = [&](std::uint32_t at) -> std::optional<Candidate> {
      const TokenId left = symbols[at].id;
      const TokenId right = symbols[symbols[at].next].id;
      const Merge* merge = merges_.find(left, right);
      if (merge == nullptr) return std::nullopt;
      return Candidate{merge->rank, at, left, right, merge->merged};
    };
    const auto push = [&](std::uint32_t at) {
      if (const auto merged = candidate(at)) {
        heap.push_back(*merged);
        std::ranges::push_heap(heap, IsLater());
      }
    };
    for (std::uint32_t at = 0; at + 1 < symbols.size(); ++at) {
      if (const auto merged = candidate(at)) heap.push_back(*merged);
    }
    std::ranges::make_heap(heap, IsLater());
    while (!heap.empty()) {
      const Candidate first = heap.front();
      std::ranges::pop_heap(heap, IsLater());
      heap.pop_back();
      Symbol& left = symbols[first.at];
      // Stale if the left symbol changed or lost its token (id) to its left neighbor, or if its right neighbor
      // changed.
      if (left.id != first.left || left.next == kNone || symbols[left.next].id != first.right) continue;
      Symbol& right = symbols[left.next];
      left.id = first.merged;
      left.next = right.next;
      right.id = kNoToken;
      if (left.next != kNone) {
        symbols[left.next].previous = first.at;
        push(first.at);
      }
      if (left.previous != kNone) push(left.previous);
    }
    if (heap.capacity() > kMaxKeptSymbols) heap = {};
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::optional<TokenId> unknown_;
  std::array<TokenId, 256> of_byte_ = {};  // the byte's character in GPT-2's alphabet
  ByteTokens fallback_;
};

Result<MergeTable> make_merges(const ModelLists& lists, const JsonNode& node, const Vocabulary& vocabulary,
                               std::size_t prefix_bytes) {
  if (!lists.merges) return node.error("expected a list");
  MergeTable merges(lists.merges->size());
  std::uint32_t rank = 0;
  std::string merged;
  for (const auto& [left, right] : *lists.merges) {
    const auto error = [&, at = rank](std::string_view what) {
      return node.error(fmt::format("entry {}: {}", at, what));
    };
    if (right.size() < prefix_bytes) return error("the second token is shorter than continuing_subword_prefix");
    merged.assign(left).append(right, prefix_bytes);
    const auto left_id = vocabulary.id_of(left);
    const auto right_id = vocabulary.id_of(right);
    const auto merged_id = vocabulary.id_of(merged);
    if (!left_id || !right_id || !merged_id) {
      return error(fmt::format("the vocabulary has no token {}", quoted_text(!left_id    ? left
                                                                             : !right_id ? right
                                                                                         : merged)));
    }
    merges.insert(*left_id, *right_id, {rank++, *merged_id});
  }
  return merges;
}

Result<std::optional<std::string>> text_if_any(const JsonNode& node, std::string_view key) {
  if (is_null(node, key)) return std::optional<std::string>();
  ACCORD_ASSIGN_OR_RETURN(std::string text, node.at(key).text());
  return std::optional(std::move(text));
}

}  // namespace

Result<std::unique_ptr<Model>> read_bpe(const JsonNode& node, ModelLists lists) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"vocab", "merges"},
                                         {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                                          "fuse_unk", "byte_fallback", "ignore_merges"}));
  if (!is_null(node, "dropout") && node.at("dropout").json() != 0.0) {
    return node.at("dropout").error_as(StatusCode::kUnsupported,
                                       "accord does not drop merges at random; set it to null");
  }
  BpeOptions options;
  ACCORD_ASSIGN_OR_RETURN(options.unk_token, text_if_any(node, "unk_token"));
  ACCORD_ASSIGN_OR_RETURN(options.continuing_subword_prefix, text_if_any(node, "continuing_subword_prefix"));
  ACCORD_ASSIGN_OR_RETURN(options.end_of_word_suffix, text_if_any(node, "end_of_word_suffix"));
  ACCORD_ASSIGN_OR_RETURN(options.fuse_unk, boolean_or(node, "fuse_unk", false));
  ACCORD_ASSIGN_OR_RETURN(options.byte_fallback, boolean_or(node, "byte_fallback", false));
  ACCORD_ASSIGN_OR_RETURN(options.ignore_merges, boolean_or(node, "ignore_merges", false));
  ACCORD_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::make(std::move(lists.vocab), node.at("vocab")));
  const std::size_t prefix_bytes = options.continuing_subword_prefix ? options.continuing_subword_prefix->size() : 0;
  ACCORD_ASSIGN_OR_RETURN(MergeTable merges, make_merges(lists, node.at("merges"), vocabulary, prefix_bytes));
  return std::unique_ptr<Model>(std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(options)));
}

}  // namespace accord::tokenizer
