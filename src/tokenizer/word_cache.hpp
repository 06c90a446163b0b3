#pragma once
// A cache of the tokens of recent words. Text repeats its words, and merging a word takes far longer than looking it
// up.

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "accord/tokenizer.hpp"

namespace accord::tokenizer {

/// A table of fixed size (1 MiB). Each word has one slot, which holds the latest word that maps to it. Words of more
/// than 24 bytes or 7 tokens are not cached. Not thread-safe.
class WordCache {
 public:
  static constexpr std::size_t kMaxBytes = 24;
  static constexpr std::size_t kMaxTokens = 7;

  /// A word in the form that the table stores. REQUIRES: at most kMaxBytes.
  struct Key {
    explicit Key(std::string_view word) : length(static_cast<std::uint32_t>(word.size())) {
      word.copy(reinterpret_cast<char*>(bytes.data()), word.size());
    }
    std::size_t index() const {
      constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
      const std::uint64_t mixed = ((bytes[0] * kOdd ^ bytes[1]) * kOdd ^ bytes[2]) * kOdd + length;
      return (mixed ^ mixed >> 29) * kOdd >> (64 - kIndexBits);
    }
    std::array<std::uint64_t, kMaxBytes / 8> bytes = {};
    std::uint32_t length;
    bool operator==(const Key&) const = default;
  };

  /// Returns the tokens of `word`; empty if it is not cached.
  std::span<const TokenId> find(const Key& word) const {
    const Entry& entry = entries_[word.index()];
    return entry.word == word ? std::span(entry.tokens).first(entry.count) : std::span<const TokenId>();
  }
  /// Stores the tokens of a word, unless there are too many.
  void store(const Key& word, std::span<const TokenId> tokens) {
    if (tokens.empty() || tokens.size() > kMaxTokens) return;
    Entry& entry = entries_[word.index()];
    entry.word = word;
    entry.count = static_cast<std::uint32_t>(tokens.size());
    std::memcpy(entry.tokens.data(), tokens.data(), tokens.size_bytes());
  }

 private:
  static constexpr int kIndexBits = 14;
  struct alignas(64) Entry {  // one cache line
    Key word{std::string_view()};
    std::uint32_t count = 0;
    std::array<TokenId, kMaxTokens> tokens;
  };
  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(std::size_t{1} << kIndexBits);
};

}  // namespace accord::tokenizer
