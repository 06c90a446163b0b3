#pragma once
// The chart of `accord engine report`.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace accord::cli {

/// Returns an SVG document of rank 0's report: the arena, with each piece at its position, from the op that makes it
/// to the last op that reads it; below it the ops, as high as their bytes (or their times, if they were run); and the
/// bytes of each rank's weights.
std::string engine_chart(const nlohmann::ordered_json& report);

}  // namespace accord::cli
