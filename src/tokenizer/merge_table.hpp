#pragma once
// The merges of a BPE model: which pairs of tokens become one, and in what order.

#include <cstdint>
#include <optional>
#include <vector>

#include "accord/tokenizer.hpp"

namespace accord::tokenizer {

struct Merge {
  std::uint32_t rank = 0;  ///< lower ranks are applied first
  TokenId merged = 0;
};

/// A hash table with open addressing, at most half full: a lookup usually touches one cache line.
class MergeTable {
 public:
  explicit MergeTable(std::size_t merges) {
    std::size_t capacity = 16;
    while (capacity < 2 * merges) capacity *= 2;
    entries_.resize(capacity);
  }

  /// If a pair is inserted again, the latest merge wins.
  void insert(TokenId left, TokenId right, Merge merge) {
    Entry& entry = entries_[index_of(key_of(left, right))];
    entry = {key_of(left, right), merge, true};
  }
  const Merge* find(TokenId left, TokenId right) const {
    const Entry& entry = entries_[index_of(key_of(left, right))];
    return entry.is_used ? &entry.merge : nullptr;
  }

 private:
  struct Entry {
    std::uint64_t key = 0;
    Merge merge;
    bool is_used = false;
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }
  // Index at which the key is, or would be inserted.
  std::size_t index_of(std::uint64_t key) const {
    const std::size_t mask = entries_.size() - 1;
    std::uint64_t mixed = key * 0x9e3779b97f4a7c15;
    mixed ^= mixed >> 32;
    std::size_t index = mixed & mask;
    while (entries_[index].is_used && entries_[index].key != key) index = (index + 1) & mask;
    return index;
  }

  std::vector<Entry> entries_;
};

}  // namespace accord::tokenizer
