#pragma once
// Numbered items in the order of their times, which can be changed. Of one time, the item with the lowest number is
// first.

#include <cstdint>
#include <utility>
#include <vector>

namespace accord::sim {

class IndexedQueue {
 public:
  bool empty() const { return heap_.empty(); }
  /// The first item. REQUIRES: not empty.
  std::uint32_t top() const { return heap_.front().item; }
  double top_time() const { return heap_.front().time; }

  /// Adds the item, or changes its time.
  void set(std::uint32_t item, double time) {
    if (item >= places_.size()) places_.resize(item + 1, kNowhere);
    if (places_[item] == kNowhere) {
      places_[item] = static_cast<std::uint32_t>(heap_.size());
      heap_.push_back({time, item});
    } else {
      heap_[places_[item]].time = time;
    }
    sift(places_[item]);
  }

  /// Removes the item, if it is there.
  void remove(std::uint32_t item) {
    if (item >= places_.size() || places_[item] == kNowhere) return;
    const std::uint32_t place = std::exchange(places_[item], kNowhere);
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.item == item) return;
    put(place, last);
    sift(place);
  }

 private:
  static constexpr std::uint32_t kNowhere = 0xffffffff;
  struct Entry {
    double time = 0;
    std::uint32_t item = 0;
    bool operator<(const Entry& other) const { return time != other.time ? time < other.time : item < other.item; }
  };

  void put(std::uint32_t place, Entry entry) {
    heap_[place] = entry;
    places_[entry.item] = place;
  }

  // Moves the entry at `place` up or down to where it belongs.
  void sift(std::uint32_t place) {
    const Entry entry = heap_[place];
    while (place > 0 && entry < heap_[(place - 1) / 2]) {
      put(place, heap_[(place - 1) / 2]);
      place = (place - 1) / 2;
    }
    while (true) {
      std::uint32_t child = 2 * place + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < entry)) break;
      put(place, heap_[child]);
      place = child;
    }
    put(place, entry);
  }

  std::vector<Entry> heap_;
  std::vector<std::uint32_t> places_;  // of items in the heap
};

}  // namespace accord::sim
