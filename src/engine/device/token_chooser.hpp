#pragma once
// Tokens chosen on a device, of logits that lie there.

#include <span>

#include "engine/device/device_memory.hpp"
#include "engine/device/device_run.hpp"
#include "engine/serving/token_choice.hpp"

namespace accord::engine {

/// Keeps its memory from step to step: of `choices` with a temperature a row of 4 bytes for each token, for as many as a device computes at once.
class TokenChooser {
 public:
  /// Sets a token for each of `choices`; kNoToken where the row has a NaN or infinity, or nothing else than -infinity. `logits`: of floats,
  /// [rows, width], without gaps, in memory of the run's device. Waits for the stream. Copies 4 bytes to the CPU for each choice.
  Status choose(const DeviceRun& run, const Buffer& logits, std::int64_t width, std::span<const TokenChoice> choices,
                std::span<TokenId> tokens);

 private:
  DeviceMemory choices_, tokens_, weights_;
};

}  // namespace accord::engine
