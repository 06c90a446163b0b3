#pragma once
// Admits one thread at a time.

#include <atomic>

namespace accord {

/// Holds `busy` for its lifetime, unless another guard holds it: then entered() is false. Never waits.
class BusyGuard {
 public:
  explicit BusyGuard(std::atomic<bool>& busy)
      : busy_(busy), entered_(!busy.exchange(true, std::memory_order_acquire)) {}
  ~BusyGuard() {
    if (entered_) busy_.store(false, std::memory_order_release);
  }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;
  bool entered() const { return entered_; }

 private:
  std::atomic<bool>& busy_;
  const bool entered_;
};

}  // namespace accord
