#pragma once
// A cache of results by key with a fixed number of entries. A new key evicts the least recently used one.

#include <cstddef>
#include <list>
#include <map>
#include <utility>

namespace accord {

/// Not thread-safe. A value keeps its address until its key is the least recently used of `capacity` ones and another
/// is added.
template <typename Key, typename Value>
class RecentMap {
 public:
  /// `capacity`: at least 1.
  explicit RecentMap(std::size_t capacity) : capacity_(capacity) {}

  /// Returns null if the key is absent; otherwise the key becomes the most recently used.
  Value* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  /// REQUIRES: find(key) was null.
  Value& add(const Key& key, Value value) {
    if (entries_.size() == capacity_) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, std::move(value));
    places_.emplace(key, entries_.begin());
    return entries_.front().second;
  }

  void clear() {
    places_.clear();
    entries_.clear();
  }

  std::size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<std::pair<const Key, Value>>;

  std::size_t capacity_;
  Entries entries_;  // most recently used first
  std::map<Key, typename Entries::iterator> places_;
};

}  // namespace accord
