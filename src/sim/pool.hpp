#pragma once
// Values with numbers that are used again.

#include <cstdint>
#include <utility>
#include <vector>

namespace accord::sim {

template <typename Value>
class Pool {
 public:
  /// Numbers of removed values are used first.
  std::uint32_t add(Value value) {
    if (free_.empty()) {
      values_.push_back(std::move(value));
      return static_cast<std::uint32_t>(values_.size() - 1);
    }
    const std::uint32_t id = free_.back();
    free_.pop_back();
    values_[id] = std::move(value);
    return id;
  }
  void remove(std::uint32_t id) { free_.push_back(id); }

  Value& operator[](std::uint32_t id) { return values_[id]; }
  const Value& operator[](std::uint32_t id) const { return values_[id]; }

 private:
  std::vector<Value> values_;
  std::vector<std::uint32_t> free_;
};

}  // namespace accord::sim
