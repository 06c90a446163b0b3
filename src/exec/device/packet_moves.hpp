#pragma once
// How the threads of a block move bytes into packets and out of them. Consecutive steps, which are often the same for
// each peer, are handled together: each thread has a word or a packet of several steps on its way at a time.

#include "exec/device/plan_round.hpp"
#include "exec/device/several.hpp"

namespace accord::exec {

/// Consecutive steps with one source each, of which this thread handles the same word of each.
template <typename Round>
class StepsTogether {
 public:
  static constexpr int kSteps = 4;

  /// Steps from `first` on, but not the step `end`.
  ACCORD_ON_DEVICE StepsTogether(const Round& round, int first, int end) : round_(round), first_(first) {
    for (int j = 0; j < kSteps; ++j) {
      if (first + j >= end) continue;
      const DeviceStep& step = round.program().step(first + j);
      from_[j] = round.address(round.program().source(step, 0));
      bytes_[j] = round.elements(step) * round.program().element_bytes;
      if (bytes_[j] > longest_) longest_ = bytes_[j];
    }
  }

  ACCORD_ON_DEVICE std::size_t words() const { return (longest_ + 7) / 8; }
  /// Whether step j has this word.
  ACCORD_ON_DEVICE bool has(int j, std::size_t word) const { return 8 * word < bytes_[j]; }
  /// Bytes of the word: 8, or fewer at the end.
  ACCORD_ON_DEVICE std::size_t bytes_of(int j, std::size_t word) const {
    return bytes_[j] - 8 * word < 8 ? bytes_[j] - 8 * word : 8;
  }
  ACCORD_ON_DEVICE const std::byte* from(int j) const { return from_[j]; }
  ACCORD_ON_DEVICE const DeviceStep& step(int j) const { return round_.program().step(first_ + j); }

 private:
  const Round& round_;
  const int first_;
  const std::byte* from_[kSteps] = {};
  std::size_t bytes_[kSteps] = {};
  std::size_t longest_ = 0;
};

/// Runs the kPut steps from `first` to before `end`.
template <typename Round>
ACCORD_ON_DEVICE void put_packets(const Round& round, int first, int end) {
  using Steps = StepsTogether<Round>;
  const auto threads = static_cast<std::size_t>(round.block().threads());
  for (; first < end && !round.ends(); first += Steps::kSteps) {
    const Steps steps(round, first, end);
    for (auto i = static_cast<std::size_t>(round.block().thread()); i < steps.words(); i += threads) {
      std::uint64_t data[Steps::kSteps] = {};
      for (int j = 0; j < Steps::kSteps; ++j)
        if (steps.has(j, i)) data[j] = load_word(steps.from(j) + 8 * i, steps.bytes_of(j, i));
      for (int j = 0; j < Steps::kSteps; ++j) {
        if (!steps.has(j, i)) continue;
        const device::Packet packet = round.packet_of(data[j]);
        round.each_destination(steps.step(j), [&](std::byte* to, const DeviceOperand&) {
          round.block().store(reinterpret_cast<device::Packet*>(to) + i, packet);
        });
      }
    }
  }
}

/// Runs the kCopyPackets steps from `first` to before `end`.
template <typename Round>
ACCORD_ON_DEVICE void copy_packets(Round& round, int first, int end) {
  using Steps = StepsTogether<Round>;
  const auto threads = static_cast<std::size_t>(round.block().threads());
  for (; first < end; first += Steps::kSteps) {
    const Steps steps(round, first, end);
    for (auto i = static_cast<std::size_t>(round.block().thread()); i < steps.words(); i += threads) {
      std::uint64_t data[Steps::kSteps] = {};
      round.await([&] {
        bool arrived = true;
        for (int j = 0; j < Steps::kSteps; ++j) {
          if (!steps.has(j, i)) continue;
          const device::Packet packet = round.block().load(reinterpret_cast<const device::Packet*>(steps.from(j)) + i);
          arrived = arrived && round.has_arrived(packet);
          data[j] = Round::word_in(packet);
        }
        return arrived;
      });
      if (round.ends()) return;
      for (int j = 0; j < Steps::kSteps; ++j) {
        if (!steps.has(j, i)) continue;
        round.each_destination(steps.step(j), [&](std::byte* to, const DeviceOperand&) {
          store_word(data[j], to + 8 * i, steps.bytes_of(j, i));
        });
      }
    }
  }
}

}  // namespace accord::exec
