#pragma once
// The tokens of words that came lately. Text repeats its words, and merging one takes far longer than looking it up.

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "accord/tokenizer.hpp"

namespace accord::tokenizer {

/// A table of fixed size (1 MiB): a word has one place in it, which the latest word with that place takes. Words of more than 24 bytes
/// or 7 tokens have none. For one thread at a time.
class WordCache {
 public:
  static constexpr std::size_t kMostBytes = 24;
  static constexpr std::size_t kMostTokens = 7;

  /// A word as the table knows it. REQUIRES: at most kMostBytes.
  struct Key {
    explicit Key(std::string_view word) : length(static_cast<std::uint32_t>(word.size())) {
      word.copy(reinterpret_cast<char*>(bytes.data()), word.size());
    }
    std::size_t place() const {
      constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
      const std::uint64_t mixed = ((bytes[0] * kOdd ^ bytes[1]) * kOdd ^ bytes[2]) * kOdd + length;
      return (mixed ^ mixed >> 29) * kOdd >> (64 - kPlaceBits);
    }
    std::array<std::uint64_t, kMostBytes / 8> bytes = {};
    std::uint32_t length;
    bool operator==(const Key&) const = default;
  };

  /// The tokens of `word`; empty if it is not here.
  std::span<const TokenId> find(const Key& word) const {
    const Entry& entry = entries_[word.place()];
    return entry.word == word ? std::span(entry.tokens).first(entry.count) : std::span<const TokenId>();
  }
  /// Keeps them, if there are not too many.
  void keep(const Key& word, std::span<const TokenId> tokens) {
    if (tokens.empty() || tokens.size() > kMostTokens) return;
    Entry& entry = entries_[word.place()];
    entry.word = word;
    entry.count = static_cast<std::uint32_t>(tokens.size());
    std::memcpy(entry.tokens.data(), tokens.data(), tokens.size_bytes());
  }

 private:
  static constexpr int kPlaceBits = 14;
  struct alignas(64) Entry {  // a line of cache
    Key word{std::string_view()};
    std::uint32_t count = 0;
    std::array<TokenId, kMostTokens> tokens;
  };
  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(std::size_t{1} << kPlaceBits);
};

}  // namespace accord::tokenizer
