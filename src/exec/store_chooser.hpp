#pragma once
// Decides whether blocks that peers read are written through the cache or past it, from the measured cost of the
// writes.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"
#include "kernels/copy.hpp"

namespace accord::exec {

/// Learns, for each order of magnitude of block size, which kind of store is cheaper on this core towards these
/// peers.
///
/// Between cores that share a cache, stores through it are up to three times cheaper. Between cores that do not, each
/// line first has to be fetched from the reader's cache, and stores past the cache are up to ten times cheaper.
/// Virtual machines hide which case applies and move between them. The kind affects no result, so each rank decides
/// for itself.
///
/// A measurement writes both kinds twice (the lower value counts, since the other may have been interrupted). It takes
/// place at first use, every kMeasureEvery blocks, and when the kind in use has become more expensive; a regular
/// measurement stops after a block that is far too expensive. All other blocks cost a comparison, and every
/// kSampleEvery-th two clock reads. Used by one thread at a time.
class StoreChooser {
 public:
  /// Smaller blocks are written through the cache: a reader that has to fetch them from memory loses more than the
  /// writer saves, and only the writer is measured.
  static constexpr std::size_t kSmallest = 32 << 10;
  using Now = Clock::time_point (*)();

  explicit StoreChooser(Now now = &Clock::now) : now_(now) {}

  /// Calls `write(kind)`, which writes a block of `bytes` bytes.
  template <typename Write>
  void run(std::size_t bytes, Write write) {
    if (bytes < kSmallest) return write(kernels::Store::kTemporal);
    Choice& choice = choices_[std::bit_width(bytes / kSmallest) - 1];
    ++choice.blocks;
    if (choice.measurement == kNotMeasuring && choice.blocks % kSampleEvery != 0) [[likely]]
      return write(choice.kind);
    const kernels::Store kind = kind_to_measure(choice);
    const Clock::time_point began = now_();
    write(kind);
    const std::chrono::duration<double, std::nano> spent = now_() - began;
    learn(choice, kind, spent.count() / static_cast<double>(bytes));
  }

  /// The kind in use for blocks of that size.
  kernels::Store kind(std::size_t bytes) const {
    return bytes < kSmallest ? kernels::Store::kTemporal : choices_[std::bit_width(bytes / kSmallest) - 1].kind;
  }

 private:
  static constexpr std::uint32_t kSampleEvery = 16;
  static constexpr std::uint32_t kMeasureEvery = 256;
  static constexpr std::uint8_t kMeasureLength = 4;  // two blocks of each kind
  static constexpr std::uint8_t kNotMeasuring = kMeasureLength;

  struct Choice {
    kernels::Store kind = kernels::Store::kTemporal;
    std::uint8_t measurement = 0;     ///< next step of the one in progress, or kNotMeasuring
    std::uint8_t costly_samples = 0;  ///< consecutive samples above the expected cost
    std::uint32_t blocks = 0;
    std::array<double, 2> cost = {};  ///< of each kind at the last measurement, nanoseconds per byte
  };

  static kernels::Store kind_to_measure(const Choice& choice);
  static void learn(Choice& choice, kernels::Store kind, double cost);

  Now now_;
  std::array<Choice, 64> choices_;
};

}  // namespace accord::exec
