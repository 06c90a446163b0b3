#pragma once
// Put, signal and wait for a program's own kernels: a channel from this rank's GPU to that of one peer, over memory
// that both can reach.
//
//   __global__ void exchange(accord::DeviceChannelHandle to, const float* values, std::size_t count) {
//     to.put(0, values, count * sizeof(float), threadIdx.x, blockDim.x);
//     __syncthreads();
//     if (threadIdx.x == 0) {
//       to.signal();
//       to.wait();
//     }
//     __syncthreads();
//     // The peer's data is in to.local now.
//   }
//
// When compiled for the host, as in the tests, the same functions work on host memory.

#include <cstddef>
#include <cstdint>

#ifndef __CUDA_ARCH__
#include <atomic>
#include <thread>
#endif

#ifdef __CUDACC__
#define ACCORD_CHANNEL_FUNCTION __host__ __device__ inline
#else
#define ACCORD_CHANNEL_FUNCTION inline
#endif

namespace accord {

/// Plain values that are passed to kernels; created by PeerWindow::channel(). At any time only one thread may signal
/// through it and only one may wait. Kernels that use it on the two ranks must run at the same time, as with any
/// communication.
struct DeviceChannelHandle {
  unsigned char* local = nullptr;         ///< this rank's memory
  unsigned char* remote = nullptr;        ///< the peer's memory
  std::uint64_t* sent = nullptr;          ///< number of signals that this rank has sent
  std::uint64_t* taken = nullptr;         ///< number of the peer's signals that waits have consumed
  std::uint64_t* arrived = nullptr;       ///< number of the peer's signals that have arrived
  std::uint64_t* at_peer = nullptr;       ///< the peer's `arrived`
  const std::uint64_t* ending = nullptr;  ///< in host memory: nonzero once the group has failed

  /// Copies `bytes` of `source` to `offset` bytes from the start of the peer's memory, jointly with the other
  /// threads: this thread is number `thread` of `threads`. The data is visible to a rank that waits for a later
  /// signal.
  ACCORD_CHANNEL_FUNCTION void put(std::size_t offset, const void* source, std::size_t bytes, unsigned thread,
                                   unsigned threads) const {
    const auto* const from = static_cast<const unsigned char*>(source);
    unsigned char* const to = remote + offset;
    const bool in_words = ((reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to)) & 7U) == 0;
    const std::size_t words = in_words ? bytes / 8 : 0;
    for (std::size_t i = thread; i < words; i += threads)
      reinterpret_cast<std::uint64_t*>(to)[i] = reinterpret_cast<const std::uint64_t*>(from)[i];
    for (std::size_t i = 8 * words + thread; i < bytes; i += threads) to[i] = from[i];
  }

  /// Sends one signal to the peer. A rank that waits for it sees the data that this thread put before, and the data
  /// of other threads that this thread has synchronized with since (__syncthreads).
  ACCORD_CHANNEL_FUNCTION void signal() const {
    const std::uint64_t number = *sent + 1;
    *sent = number;
#ifdef __CUDA_ARCH__
    // A release is cumulative over barriers, so it also publishes what the other threads put before them.
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at_peer), "l"(number) : "memory");
#else
    std::atomic_ref(*at_peer).store(number, std::memory_order_release);
#endif
  }

  /// Waits for one signal of the peer that no wait has consumed yet, and consumes it. Returns false if the group
  /// fails meanwhile; the state of the peer's data is unknown then.
  ACCORD_CHANNEL_FUNCTION bool wait() const {
    const std::uint64_t number = *taken + 1;
    for (unsigned looks = 1; arrived_so_far() < number; ++looks) {
      if (looks % 1024 != 0) continue;
      if (has_ended()) return false;
      yield();
    }
    *taken = number;
    return true;
  }

 private:
  /// On the host, the peer's thread may need this core.
  ACCORD_CHANNEL_FUNCTION static void yield() {
#ifndef __CUDA_ARCH__
    std::this_thread::yield();
#endif
  }
  ACCORD_CHANNEL_FUNCTION std::uint64_t arrived_so_far() const {
#ifdef __CUDA_ARCH__
    std::uint64_t number;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(number) : "l"(arrived) : "memory");
    return number;
#else
    return std::atomic_ref(*arrived).load(std::memory_order_acquire);
#endif
  }
  ACCORD_CHANNEL_FUNCTION bool has_ended() const {
#ifdef __CUDA_ARCH__
    std::uint64_t word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(ending) : "memory");
    return word != 0;
#else
    return std::atomic_ref(*const_cast<std::uint64_t*>(ending)).load(std::memory_order_relaxed) != 0;
#endif
  }
};

}  // namespace accord
