#pragma once
// Words of host memory over which a rank and its kernels tell each other that something is wrong.

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/runtime.hpp"

namespace accord::comm {

/// Kernels read the stop word. Once it is not 0 they must stop waiting for other ranks, and must not write to them any
/// more. They set the fault word when they find themselves in a state that the host does not see.
class StopWord {
 public:
  static Result<std::shared_ptr<StopWord>> create(device::Runtime& runtime, Device device) {
    ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime.allocate_host(device, kFault + sizeof(std::uint64_t)));
    return std::make_shared<StopWord>(runtime, device, static_cast<std::byte*>(memory));
  }
  StopWord(device::Runtime& runtime, Device device, std::byte* memory)
      : runtime_(runtime), device_(device), memory_(memory) {
    *word(0) = 0;
    *word(kFault) = 0;
  }
  ~StopWord() { (void)runtime_.release_host(device_, memory_); }
  StopWord(const StopWord&) = delete;
  StopWord& operator=(const StopWord&) = delete;

  const std::uint64_t* get() const { return word(0); }
  void set() { std::atomic_ref(*word(0)).store(1, std::memory_order_release); }

  std::uint64_t* fault() const { return word(kFault); }
  bool has_fault() const { return std::atomic_ref(*word(kFault)).load(std::memory_order_acquire) != 0; }

 private:
  static constexpr std::size_t kFault = 128;  ///< in a cache line of its own
  std::uint64_t* word(std::size_t at) const { return reinterpret_cast<std::uint64_t*>(memory_ + at); }

  device::Runtime& runtime_;
  const Device device_;
  std::byte* const memory_;
};

}  // namespace accord::comm
