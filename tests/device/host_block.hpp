#pragma once
// Kernels on the host: each thread of a block is a thread here, so that what a kernel says of places and of meetings is tested.

#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/host_multicast.hpp"
#include "device/kernel.hpp"
#include "device/numbers.hpp"

namespace accord::testing {

/// What the threads of a block, or of a warp, meet at, and where they show each other values.
class HostTeam {
 public:
  explicit HostTeam(int threads) : barrier_(threads), shown_(static_cast<std::size_t>(threads)) {}
  void meet() { barrier_.arrive_and_wait(); }
  /// What combine() makes of the values of all, in the order of the threads.
  template <typename T, typename Combine>
  T combine(int me, T x, Combine combine) {
    show(me, x);
    T all = shown<T>(0);
    for (std::size_t i = 1; i < shown_.size(); ++i) all = combine(all, shown<T>(i));
    meet();
    return all;
  }
  template <typename T>
  T value_of(int me, T x, int other) {
    show(me, x);
    const T its = shown<T>(static_cast<std::size_t>(other));
    meet();
    return its;
  }

 private:
  template <typename T>
  void show(int me, T x) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::memcpy(&shown_[static_cast<std::size_t>(me)], &x, sizeof(T));
    meet();
  }
  template <typename T>
  T shown(std::size_t i) const {
    T x;
    std::memcpy(&x, &shown_[i], sizeof(T));
    return x;
  }
  std::barrier<> barrier_;
  std::vector<std::uint64_t> shown_;
};

/// Block of device/kernel.hpp.
class HostBlock {
 public:
  struct Place {
    int thread = 0, threads = 1, block = 0, blocks = 1, lanes = 1;
    bool may_wait = true;  ///< for others
  };
  HostBlock(const Place& place, HostTeam& team, HostTeam& warp, std::byte* shared)
      : place_(place), team_(team), warp_(warp), shared_(shared) {}

  int thread() const { return place_.thread; }
  int threads() const { return place_.threads; }
  int block() const { return place_.block; }
  int blocks() const { return place_.blocks; }
  std::size_t first() const { return static_cast<std::size_t>(place_.block * place_.threads + place_.thread); }
  std::size_t stride() const { return static_cast<std::size_t>(place_.blocks * place_.threads); }
  int lane() const { return place_.thread % place_.lanes; }
  int lanes() const { return place_.lanes; }

  void sync() const { team_.meet(); }
  bool any(bool x) const { return block_max(x ? 1 : 0) != 0; }
  void sync_warp() const { warp_.meet(); }
  std::byte* shared() const { return shared_; }

  template <typename T>
  T from_lane(T x, int lane) const {
    return warp_.value_of(this->lane(), x, lane);
  }
  template <typename T>
  T warp_sum(T x) const {
    return warp_.combine(lane(), x, [](T a, T b) { return a + b; });
  }
  template <typename T>
  T warp_max(T x) const {
    return warp_.combine(lane(), x, [](T a, T b) { return a > b ? a : b; });
  }
  template <typename T>
  T block_sum(T x) const {
    return team_.combine(thread(), x, [](T a, T b) { return a + b; });
  }
  template <typename T>
  T block_max(T x) const {
    return team_.combine(thread(), x, [](T a, T b) { return a > b ? a : b; });
  }

  void pause() const {
    if (!place_.may_wait) {
      std::fputs("a kernel waits with several blocks that need not run at the same time: others may never run\n",
                 stderr);
      std::abort();
    }
    std::this_thread::yield();
  }
  std::uint64_t add(std::uint64_t* word, std::uint64_t n) const {
    return std::atomic_ref(*word).fetch_add(n, std::memory_order_relaxed);
  }
  std::uint64_t load(const std::uint64_t* word) const { return of(word).load(std::memory_order_relaxed); }
  void store(std::uint64_t* word, std::uint64_t x) const { of(word).store(x, std::memory_order_relaxed); }
  std::uint64_t load_acquire(const std::uint64_t* word) const { return of(word).load(std::memory_order_acquire); }
  void store_release(std::uint64_t* word, std::uint64_t x) const { of(word).store(x, std::memory_order_release); }
  device::Packet load(const device::Packet* packet) const {
    return {{std::bit_cast<Half>(half_of(packet, 0).load(std::memory_order_relaxed)),
             std::bit_cast<Half>(half_of(packet, 1).load(std::memory_order_relaxed))}};
  }
  void store(device::Packet* packet, const device::Packet& x) const {
    for (int i = 0; i < 2; ++i)
      half_of(packet, i).store(std::bit_cast<std::uint64_t>(x.half[i]), std::memory_order_relaxed);
  }

  void store_multicast(std::byte* at, const device::Words& x) const {
    for (std::byte* const place : places_of_all(at)) std::memcpy(place, &x, sizeof(x));
  }
  /// From the last device to the first: not the canonical order.
  template <device::SwitchSum kSum>
  device::Words sum_multicast(const std::byte* at) const {
    const std::vector<std::byte*> places = places_of_all(at);
    using device::SwitchSum;
    if constexpr (kSum == SwitchSum::kUInt32) return sum_of<std::uint32_t, std::uint32_t>(places);
    if constexpr (kSum == SwitchSum::kUInt64) return sum_of<std::uint64_t, std::uint64_t>(places);
    if constexpr (kSum == SwitchSum::kFloat32) return sum_of<float, float>(places);
    if constexpr (kSum == SwitchSum::kFloat64) return sum_of<double, double>(places);
    constexpr bool kIsBrain = kSum == SwitchSum::kBFloat16;
    return sum_of<std::uint16_t, float>(
        places, [](std::uint16_t x) { return kIsBrain ? device::from_bfloat16(x) : device::from_float16(x); },
        [](float x) { return kIsBrain ? device::to_bfloat16(x) : device::to_float16(x); });
  }
  void fence_multicast() const {}

 private:
  template <typename Stored, typename Sum>
  static device::Words sum_of(
      const std::vector<std::byte*>& places, Sum (*widen)(Stored) = [](Stored x) { return static_cast<Sum>(x); },
      Stored (*narrow)(Sum) = [](Sum x) { return static_cast<Stored>(x); }) {
    constexpr std::size_t kCount = sizeof(device::Words) / sizeof(Stored);
    std::array<Sum, kCount> sums = {};
    std::array<Stored, kCount> stored = {};
    for (std::size_t p = places.size(); p-- > 0;) {
      std::memcpy(stored.data(), places[p], sizeof(stored));
      for (std::size_t i = 0; i < kCount; ++i) sums[i] += widen(stored[i]);
    }
    for (std::size_t i = 0; i < kCount; ++i) stored[i] = narrow(sums[i]);
    device::Words words;
    std::memcpy(&words, stored.data(), sizeof(words));
    return words;
  }
  static std::atomic_ref<std::uint64_t> of(const std::uint64_t* word) {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word));
  }
  using Half = device::Packet::Half;
  static std::atomic_ref<std::uint64_t> half_of(const device::Packet* packet, int i) {
    return std::atomic_ref(reinterpret_cast<std::uint64_t*>(const_cast<device::Packet*>(packet))[i]);
  }

  const Place place_;
  HostTeam& team_;
  HostTeam& warp_;
  std::byte* const shared_;
};

/// A kernel's code for the host: what one thread does, with its arguments.
using HostCode = void (*)(const void* arguments, HostBlock& block);

template <typename K>
void run_on_host(const void* arguments, HostBlock& block) {
  (*static_cast<const K*>(arguments))(block);
}

/// That of the kernel of this name; null for one that host_kernels.cpp does not list.
HostCode host_code(const char* name);

/// Of every kernel: few, as each is a thread here; a kernel is right for any number.
inline constexpr int kHostThreads = 4;
inline constexpr int kHostLanes = 2;

/// Runs all blocks to their end.
void run_grid(HostCode code, const void* arguments, const device::Grid& grid);

}  // namespace accord::testing
