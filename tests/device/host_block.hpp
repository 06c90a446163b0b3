#pragma once
// Kernels on the host: each thread of a block is a fiber here (under ThreadSanitizer, a thread), so that a kernel's
// use of thread positions and synchronization is tested. The threads of a block take turns (host_team.hpp).

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "device/host_multicast.hpp"
#include "device/host_team.hpp"
#include "device/kernel.hpp"
#include "device/numbers.hpp"

namespace accord::testing {

/// The Block of device/kernel.hpp.
class HostBlock {
 public:
  struct Position {
    int thread = 0, threads = 1, block = 0, blocks = 1, lanes = 1;
    bool may_wait = true;       ///< for other blocks
    HostTurns* gate = nullptr;  ///< at which a kernel that starts early waits; null for others
  };
  HostBlock(const Position& position, HostTeam& team, HostTeam& warp, std::byte* shared)
      : position_(position), team_(team), warp_(warp), shared_(shared) {}

  int thread() const { return position_.thread; }
  int threads() const { return position_.threads; }
  int block() const { return position_.block; }
  int blocks() const { return position_.blocks; }
  std::size_t first() const { return static_cast<std::size_t>(position_.block * position_.threads + position_.thread); }
  std::size_t stride() const { return static_cast<std::size_t>(position_.blocks * position_.threads); }
  int lane() const { return position_.thread % position_.lanes; }
  int lanes() const { return position_.lanes; }

  void sync() const { team_.sync(thread()); }
  bool any(bool x) const { return block_max(x ? 1 : 0) != 0; }
  void sync_warp() const { warp_.sync(lane()); }
  std::byte* shared() const { return shared_; }

  template <typename T>
  T from_lane(T x, int lane) const {
    return warp_.exchange(this->lane(), x)[lane];
  }
  template <DType kDType>
  void multiply(const device::Tiles& a, const device::TilePair& b, device::Sums& c) const {
    static_assert(kDType == DType::kBFloat16 || kDType == DType::kFloat16);
    require_fragments();
    struct Operands {
      device::Tiles a;
      device::TilePair b;
    };
    const auto operands = warp_.exchange(lane(), Operands{a, b});
    for (int i = 0; i < 4; ++i) {
      const int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
      double sum = c.of[i];
      for (int k = 0; k < 16; ++k) {
        const std::uint32_t in_a = operands[row % 8 * 4 + k % 8 / 2].a.of[row / 8 + k / 8 * 2];
        const std::uint32_t in_b = operands[column * 4 + k % 8 / 2].b.of[k / 8];
        sum += double{half_of<kDType>(in_a, k % 2)} * double{half_of<kDType>(in_b, k % 2)};
      }
      c.of[i] = static_cast<float>(sum);
    }
  }
  device::Tiles load_tiles(const void* row) const {
    return gather_tiles(row, [](int row_of_tile, int column) { return std::pair(row_of_tile, column); });
  }
  device::Tiles load_transposed(const void* row) const {
    return gather_tiles(row, [](int row_of_tile, int column) { return std::pair(column, row_of_tile); });
  }
  void copy_async(device::Words* to, const device::Words* from, bool is_present) {
    copies_.push_back({to, is_present ? from : nullptr, copy_group_});
    if ((++copies_started_ + static_cast<unsigned>(thread())) % 2 == 0) complete_copies(copies_.size() - 1);
  }
  void wait_copies() { complete_copies(0); }
  void commit_copies() { ++copy_group_; }
  template <int kPending>
  void wait_groups() {
    // Copies of later groups come last. They stay as they are.
    const auto is_pending = [&](const Copy& copy) { return copy.group + kPending >= copy_group_; };
    const auto first_pending = std::find_if(copies_.begin(), copies_.end(), is_pending);
    const std::vector<Copy> pending(first_pending, copies_.end());
    copies_.erase(first_pending, copies_.end());
    complete_copies(0);
    copies_ = pending;
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

  void await_earlier() {
    has_awaited_ = true;
    if (position_.gate != nullptr) position_.gate->wait_at_gate(thread());
  }
  bool has_awaited() const { return has_awaited_; }
  void start_next() { has_started_next_ = true; }

  void pause() const {
    if (!position_.may_wait) {
      std::fputs("a kernel waits with several blocks that need not run at the same time: others may never run\n",
                 stderr);
      std::abort();
    }
    if (has_started_next_) {
      std::fputs("a kernel waits after start_next(): what it waits for may find no multiprocessor\n", stderr);
      std::abort();
    }
    team_.pause(thread());
  }
  std::uint64_t add(std::uint64_t* word, std::uint64_t n) const {
    return std::atomic_ref(*word).fetch_add(n, std::memory_order_relaxed);
  }
  std::uint64_t add_acq_rel(std::uint64_t* word, std::uint64_t n) const {
    return std::atomic_ref(*word).fetch_add(n, std::memory_order_acq_rel);
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
    for (std::byte* const address : addresses_of_all(at)) std::memcpy(address, &x, sizeof(x));
  }
  /// Adds from the last device to the first, which is not the canonical order.
  template <device::SwitchSum kSum>
  device::Words sum_multicast(const std::byte* at) const {
    const std::vector<std::byte*> addresses = addresses_of_all(at);
    using device::SwitchSum;
    if constexpr (kSum == SwitchSum::kUInt32) return sum_of<std::uint32_t, std::uint32_t>(addresses);
    if constexpr (kSum == SwitchSum::kUInt64) return sum_of<std::uint64_t, std::uint64_t>(addresses);
    if constexpr (kSum == SwitchSum::kFloat32) return sum_of<float, float>(addresses);
    if constexpr (kSum == SwitchSum::kFloat64) return sum_of<double, double>(addresses);
    constexpr bool kIsBrain = kSum == SwitchSum::kBFloat16;
    return sum_of<std::uint16_t, float>(
        addresses, [](std::uint16_t x) { return kIsBrain ? device::from_bfloat16(x) : device::from_float16(x); },
        [](float x) { return kIsBrain ? device::to_bfloat16(x) : device::to_float16(x); });
  }
  void fence_multicast() const {}

 private:
  template <typename Stored, typename Sum>
  static device::Words sum_of(
      const std::vector<std::byte*>& addresses, Sum (*widen)(Stored) = [](Stored x) { return static_cast<Sum>(x); },
      Stored (*narrow)(Sum) = [](Sum x) { return static_cast<Stored>(x); }) {
    constexpr std::size_t kCount = sizeof(device::Words) / sizeof(Stored);
    std::array<Sum, kCount> sums = {};
    std::array<Stored, kCount> stored = {};
    for (std::size_t p = addresses.size(); p-- > 0;) {
      std::memcpy(stored.data(), addresses[p], sizeof(stored));
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

  void require_fragments() const {
    if (position_.lanes == device::kFragmentLanes) return;
    std::fputs("a kernel that uses fragments does not declare warps of 32 lanes\n", stderr);
    std::abort();
  }
  /// Returns one of a word's two elements.
  template <DType kDType>
  static float half_of(std::uint32_t word, int i) {
    const auto bits = static_cast<std::uint16_t>(word >> (16 * i));
    return kDType == DType::kBFloat16 ? device::from_bfloat16(bits) : device::from_float16(bits);
  }
  /// `locate` gives the row and column in its tile of the element at a row and column of the result.
  template <typename Locate>
  device::Tiles gather_tiles(const void* row, Locate locate) const {
    require_fragments();
    if (std::bit_cast<std::uintptr_t>(row) % 16 != 0) {
      std::fputs("a row of a tile is not aligned to 16 bytes\n", stderr);
      std::abort();
    }
    const auto rows = warp_.exchange(lane(), row);
    device::Tiles tiles{};
    for (int tile = 0; tile < 4; ++tile) {
      for (int i = 0; i < 2; ++i) {
        const auto [tile_row, tile_column] = locate(lane() / 4, lane() % 4 * 2 + i);
        std::uint16_t element;
        std::memcpy(&element, static_cast<const std::byte*>(rows[tile * 8 + tile_row]) + tile_column * 2, 2);
        tiles.of[tile] |= std::uint32_t{element} << (16 * i);
      }
    }
    return tiles;
  }

  struct Copy {
    device::Words* to;
    const device::Words* from;  ///< null: zeros
    int group;
  };
  /// Completes the copies from number `first` on, the last one first.
  void complete_copies(std::size_t first) {
    for (; copies_.size() > first; copies_.pop_back()) {
      const Copy& copy = copies_.back();
      *copy.to = copy.from == nullptr ? device::Words{} : *copy.from;
    }
  }

  const Position position_;
  HostTeam& team_;
  HostTeam& warp_;
  std::byte* const shared_;
  std::vector<Copy> copies_;  ///< not done yet
  unsigned copies_started_ = 0;
  bool has_awaited_ = false, has_started_next_ = false;
  int copy_group_ = 0;  ///< the number of groups that are committed
};

/// A kernel's code for the host: the work of one thread, with the kernel's arguments.
using HostCode = void (*)(const void* arguments, HostBlock& block);

/// Block size for a kernel that accepts warps of any size. Few threads, since each is a fiber here; such a kernel is
/// correct for any number.
inline constexpr int kHostThreads = 4;
inline constexpr int kHostLanes = 2;
/// The most warps in a block of any other kernel.
inline constexpr int kHostWarps = 2;

/// A kernel on the host, and the number of threads in its blocks.
struct HostKernel {
  std::string_view name;
  HostCode code = nullptr;
  int threads = kHostThreads, lanes = kHostLanes;
  bool starts_early = false;
};

template <typename K>
void run_on_host(const void* arguments, HostBlock& block) {
  (*static_cast<const K*>(arguments))(block);
}

/// Blocks [first, last) of a grid. They run one after the other, which is allowed for blocks that do not wait for
/// each other.
struct HostBlocks {
  HostCode code = nullptr;
  const void* arguments = nullptr;
  int threads = 1, lanes = 1;  ///< per block
  int first = 0, last = 1, blocks = 1;
  std::size_t shared_bytes = 0;  ///< initially all NaN
  bool may_wait = true;          ///< for other blocks
  bool starts_early = false;     ///< each thread must call await_earlier()
};
void run_blocks(const HostBlocks& blocks);

/// A run of blocks in two parts, both by the same thread.
class HostRun {
 public:
  explicit HostRun(const HostBlocks& blocks);
  ~HostRun();
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;
  /// Runs the first block until its threads wait in await_earlier(), or, if it does not start early, nothing.
  void begin();
  /// Runs the blocks to completion.
  void finish();

 private:
  void run_thread(int thread);

  const HostBlocks blocks_;
  std::unique_ptr<HostTurns> turns_;  ///< null if threads run in parallel
  HostTeam team_;
  std::deque<HostTeam> warps_;
  std::vector<device::Words> shared_;
  bool has_begun_ = false;
};

/// Returns the kernel of this name; null if host_kernels.cpp does not list it.
const HostKernel* host_kernel(const char* name);

/// The blocks of a grid that need not run together.
HostBlocks blocks_of(const HostKernel& kernel, const void* arguments, const device::Grid& grid);
/// Runs all blocks to completion.
void run_grid(const HostKernel& kernel, const void* arguments, const device::Grid& grid);

}  // namespace accord::testing
