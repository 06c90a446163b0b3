#pragma once
// Tells kernels that their group has failed.

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/runtime.hpp"

namespace accord::comm {

/// A word of host memory that kernels read. Once it is not 0 they must stop waiting for other ranks, and must not
/// write to them any more.
class StopWord {
 public:
  static Result<std::shared_ptr<StopWord>> create(device::Runtime& runtime, Device device) {
    ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime.allocate_host(device, sizeof(std::uint64_t)));
    return std::make_shared<StopWord>(runtime, device, static_cast<std::uint64_t*>(memory));
  }
  StopWord(device::Runtime& runtime, Device device, std::uint64_t* word)
      : runtime_(runtime), device_(device), word_(word) {
    *word = 0;
  }
  ~StopWord() { (void)runtime_.release_host(device_, word_); }
  StopWord(const StopWord&) = delete;
  StopWord& operator=(const StopWord&) = delete;

  const std::uint64_t* get() const { return word_; }
  void set() { std::atomic_ref(*word_).store(1, std::memory_order_release); }

 private:
  device::Runtime& runtime_;
  const Device device_;
  std::uint64_t* const word_;
};

}  // namespace accord::comm
