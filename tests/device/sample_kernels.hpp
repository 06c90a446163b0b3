#pragma once
// Kernels for the tests of kernels.

#include "accord/channel_device.hpp"
#include "device/kernel.hpp"

namespace accord::testing {

/// values[i] *= factor.
struct Scale {
  static constexpr const char* kName = "test_scale";
  static constexpr int kThreads = 256;
  float* values;
  std::size_t count;
  float factor;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::size_t i = block.first(); i < count; i += block.stride()) values[i] *= factor;
  }
};

/// values[i] += 1; starts early.
struct AddOne {
  static constexpr const char* kName = "test_add_one";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  float* values;
  std::size_t count;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    for (std::size_t i = block.first(); i < count; i += block.stride()) values[i] += 1.0F;
  }
};

/// Copies a value that it reads before it waits for the kernel that may write it.
struct ReadTooEarly {
  static constexpr const char* kName = "test_read_too_early";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  const float* value;
  float* copy;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const float read = *value;
    block.await_earlier();
    if (block.first() == 0) *copy = read;
  }
};

/// Results that each block's threads compute together, [blocks][8]: sum and maximum over the block, sum
/// and maximum over thread 0's warp, the number of that warp's last lane, the sum through shared memory, and the
/// numbers of threads and lanes that took part.
struct Meet {
  static constexpr const char* kName = "test_meet";
  static constexpr int kThreads = 256;
  static constexpr int kResults = 8;
  std::uint64_t* results;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    auto* const shared = reinterpret_cast<std::uint64_t*>(block.shared());
    const auto mine = static_cast<std::uint64_t>(block.thread());
    shared[block.thread()] = mine;
    block.sync();
    std::uint64_t sum = 0;
    for (int i = 0; i < block.threads(); ++i) sum += shared[i];
    const std::uint64_t over_block = block.block_sum(mine), most = block.block_max(mine);
    const std::uint64_t over_warp = block.warp_sum(mine), most_of_warp = block.warp_max(mine);
    const std::uint64_t last = block.from_lane(mine, block.lanes() - 1);
    if (block.thread() != 0) return;
    std::uint64_t* const to = results + block.block() * kResults;
    const std::uint64_t found[kResults] = {over_block,
                                           most,
                                           over_warp,
                                           most_of_warp,
                                           last,
                                           sum,
                                           static_cast<std::uint64_t>(block.threads()),
                                           static_cast<std::uint64_t>(block.lanes())};
    for (int i = 0; i < kResults; ++i) to[i] = found[i];
  }
};

/// Each block passes a token to the next one, `rounds` times around, with data next to the token and in a packet.
struct Relay {
  static constexpr const char* kName = "test_relay";
  static constexpr int kThreads = 64;
  std::uint64_t* tokens;    ///< [blocks], zero at first
  device::Packet* packets;  ///< [blocks], zeros at first
  std::uint64_t* data;      ///< [blocks]
  std::uint64_t* failures;
  std::uint64_t rounds;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const int me = block.block(), next = (me + 1) % block.blocks();
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      if (block.thread() == 0) {
        if (me > 0 || round > 1) wait(block, me == 0 ? round - 1 : round);
        data[next] = 7 * round + static_cast<std::uint64_t>(next);
        const auto low = static_cast<std::uint32_t>(round), high = static_cast<std::uint32_t>(next);
        block.store(packets + next, device::Packet{{{low, low}, {high, low}}});
        block.store_release(tokens + next, round);
      }
      block.sync();
    }
  }

 private:
  template <typename Block>
  ACCORD_ON_DEVICE void wait(Block& block, std::uint64_t round) const {
    const int me = block.block();
    while (block.load_acquire(tokens + me) != round) block.pause();
    const device::Packet packet = block.load(packets + me);
    const bool right = data[me] == 7 * round + static_cast<std::uint64_t>(me) && packet.half[0].data == round &&
                       packet.half[1].data == static_cast<std::uint32_t>(me) && packet.half[0].flag == round &&
                       packet.half[1].flag == round;
    if (!right) block.add(failures, 1);
  }
};

/// Waits until a word is not zero, but not forever.
struct AwaitWord {
  static constexpr const char* kName = "test_await_word";
  static constexpr int kThreads = 32;
  const std::uint64_t* word;
  std::uint64_t* failures;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (block.thread() != 0) return;
    for (int i = 0; i < (1 << 24) && block.load(word) == 0; ++i) block.pause();
    if (block.load(word) == 0) block.add(failures, 1);
  }
};

/// Sets a word. The first test that launches it needs a kernel that is new to the device.
struct SetWord {
  static constexpr const char* kName = "test_set_word";
  static constexpr int kThreads = 32;
  std::uint64_t* word;
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (block.thread() == 0) block.store(word, 1);
  }
};

/// One block on each rank of a ring. In each round it puts its values into the next rank's memory, takes those of the
/// previous rank, and adds one to each.
struct PassOn {
  static constexpr const char* kName = "test_pass_on";
  static constexpr int kThreads = 64;
  DeviceChannelHandle to, from;
  std::uint64_t* values;  ///< [count]
  std::size_t count;
  std::uint64_t first, rounds;  ///< number of the first round, and number of rounds
  /// Slots of `count` values in each rank's memory: as many as there are ranks, so that none is overwritten before it
  /// is read.
  std::uint64_t slots;
  std::uint64_t* ended;  ///< incremented if a wait was ended
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::uint64_t round = first; round < first + rounds; ++round) {
      const std::size_t bytes = count * sizeof(std::uint64_t), at = (round % slots) * bytes;
      to.put(at, values, bytes, static_cast<unsigned>(block.thread()), static_cast<unsigned>(block.threads()));
      block.sync();
      if (block.thread() == 0) to.signal();
      const std::uint64_t arrived = block.block_max(std::uint64_t{block.thread() == 0 && from.wait() ? 1U : 0U});
      if (arrived == 0 && block.thread() == 0) block.add(ended, 1);
      if (arrived == 0) return;
      const auto* const found = reinterpret_cast<const std::uint64_t*>(from.local + at);
      for (std::size_t i = block.first(); i < count; i += block.stride()) values[i] = found[i] + 1;
      block.sync();
    }
  }
};

/// Each warp multiplies its own matrices, sums [16][16] += a [16][16] b [16][16], all row-major, in fragments that
/// are loaded from shared memory.
template <DType kDType>
struct MultiplyTiles {
  static constexpr const char* kName = kDType == DType::kBFloat16 ? "test_multiply_bfloat16" : "test_multiply_float16";
  static constexpr int kThreads = 128, kLanes = device::kFragmentLanes;
  static constexpr int kCount = 256;  ///< elements of each matrix
  const std::uint16_t *a, *b;         ///< [count][kCount] of kDType
  float* sums;                        ///< [count][kCount]
  std::size_t count;
  static std::size_t shared_bytes(int threads) {
    return static_cast<std::size_t>(threads / kLanes * 2 * kCount) * sizeof(std::uint16_t);
  }
  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const int lane = block.lane(), warp = block.thread() / kLanes, warps = block.threads() / kLanes;
    auto* const my_a = reinterpret_cast<std::uint16_t*>(block.shared()) + warp * 2 * kCount;
    auto* const my_b = my_a + kCount;
    const auto first = static_cast<std::size_t>(block.block() * warps + warp);
    for (std::size_t i = first; i < count; i += static_cast<std::size_t>(block.blocks() * warps)) {
      block.sync_warp();
      for (int at = lane; at < kCount; at += kLanes) {
        my_a[at] = a[i * kCount + at];
        my_b[at] = b[i * kCount + at];
      }
      block.sync_warp();
      // Tiles go down the left half first, then down the right half. Those of b are transposed on the way.
      const int offset = lane % 16 * 16 + lane / 16 * 8;
      const device::Tiles tiles = block.load_tiles(my_a + offset), across = block.load_transposed(my_b + offset);
      for (int half = 0; half < 2; ++half) {
        float* const to = sums + i * kCount + lane / 4 * 16 + half * 8 + lane % 4 * 2;
        device::Sums c{{to[0], to[1], to[8 * 16], to[8 * 16 + 1]}};
        block.template multiply<kDType>(tiles, {across.of[2 * half], across.of[2 * half + 1]}, c);
        to[0] = c.of[0];
        to[1] = c.of[1];
        to[8 * 16] = c.of[2];
        to[8 * 16 + 1] = c.of[3];
      }
    }
  }
};

}  // namespace accord::testing
