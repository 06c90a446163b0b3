#pragma once
// Chooses tokens on a device, from logits in its memory.

#include <span>

#include "device/memory.hpp"
#include "engine/gpu/run.hpp"
#include "engine/program/token_choice.hpp"

namespace accord::engine {

/// Allocates memory when it is first needed and then keeps it, since a release waits for everything that runs on the
/// device.
class TokenChooser {
 public:
  /// Sets how many tokens are chosen at once; more are chosen in turns. REQUIRES: no token has been chosen yet.
  void set_max_choices(std::size_t choices) { max_choices_ = choices; }
  /// Returns the bytes that this uses for rows of `width` logits on a device with `multiprocessors` multiprocessors.
  /// Nearly all of them are allocated by the first choice with a temperature.
  std::size_t bytes_for(std::int64_t width, int multiprocessors) const;
  /// Sets one token for each of `choices`; kNoToken if the row has a NaN or infinity, or nothing but -infinity.
  /// `logits`: floats [rows, width], without gaps, in memory of the run's device. Blocks until the stream has
  /// finished. Copies 4 bytes to the CPU for each choice.
  Status choose(const DeviceRun& run, const Buffer& logits, std::int64_t width, std::span<const TokenChoice> choices,
                std::span<TokenId> tokens);

 private:
  Status choose_batch(const DeviceRun& run, const Buffer& logits, std::int64_t width,
                      std::span<const TokenChoice> choices, std::span<TokenId> tokens);

  std::size_t max_choices_ = 64;
  device::Memory choices_, tokens_;
  device::Memory staged_choices_, staged_tokens_;  // the same in pinned memory of the host
  device::Memory weights_;                         // one row for each choice that is computed at the same time
};

}  // namespace accord::engine
