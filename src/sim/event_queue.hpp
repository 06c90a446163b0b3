#pragma once
// Events in the order of virtual time; those of one time in the order in which they were added.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace accord::sim {

template <typename What>
class EventQueue {
 public:
  struct Event {
    double time = 0;
    std::uint64_t order = 0;
    What what{};
  };

  bool empty() const { return events_.empty(); }
  const Event& top() const { return events_.front(); }

  void push(double time, What what) {
    events_.push_back({time, next_++, what});
    std::push_heap(events_.begin(), events_.end(), Later());
  }

  void pop() {
    std::pop_heap(events_.begin(), events_.end(), Later());
    events_.pop_back();
  }

 private:
  struct Later {  // a type, so that the comparison is inlined
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };

  std::vector<Event> events_;  // a heap
  std::uint64_t next_ = 0;
};

}  // namespace accord::sim
