#pragma once
// The checked options of a loaded engine.

#include <cstdint>
#include <optional>
#include <string>

#include "accord/engine.hpp"

namespace accord::engine {

struct LoadSettings {
  int threads = 1;
  bool copies_outputs = false;  ///< outputs on a GPU are copied to the CPU
  int canonical_ranks = 0;      ///< as in LoadOptions, like the rest
  std::int64_t overlap_rows = 0;
  std::optional<DType> all_reduce_dtype;
  std::optional<DType> activation_dtype;
};

/// kInvalidArgument or kUnsupported names an option that is wrong, or that another one excludes.
Result<LoadSettings> check_options(const LoadOptions& options);

/// How sums are sent and products computed on `device`. Equal on all ranks.
std::string arithmetic_text(const LoadSettings& settings, Device device);

}  // namespace accord::engine
