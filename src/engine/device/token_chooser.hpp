#pragma once
// Tokens chosen on a device, of logits that lie there.

#include <span>

#include "engine/device/device_memory.hpp"
#include "engine/device/device_run.hpp"
#include "engine/serving/token_choice.hpp"

namespace accord::engine {

/// Takes its memory when it is first needed, and no other later: giving memory back waits for all that runs on the device.
class TokenChooser {
 public:
  /// How many tokens are chosen at once: more take turns. REQUIRES: none was chosen yet.
  void set_most(std::size_t choices) { most_ = choices; }
  /// What it takes for rows of `width`, on a device of so many multiprocessors; nearly all of it from the first choice with a temperature on.
  std::size_t bytes_for(std::int64_t width, int multiprocessors) const;
  /// Sets a token for each of `choices`; kNoToken where the row has a NaN or infinity, or nothing else than -infinity. `logits`: of floats,
  /// [rows, width], without gaps, in memory of the run's device. Waits for the stream. Copies 4 bytes to the CPU for each choice.
  Status choose(const DeviceRun& run, const Buffer& logits, std::int64_t width, std::span<const TokenChoice> choices,
                std::span<TokenId> tokens);

 private:
  Status choose_some(const DeviceRun& run, const Buffer& logits, std::int64_t width,
                     std::span<const TokenChoice> choices, std::span<TokenId> tokens);

  std::size_t most_ = 64;
  DeviceMemory choices_, tokens_;
  DeviceMemory weights_;  // a row for each choice that is computed at once
};

}  // namespace accord::engine
