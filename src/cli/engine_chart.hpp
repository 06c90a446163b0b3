#pragma once
// The chart of `accord engine report`.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace accord::cli {

/// An SVG document of rank 0's report: the arena, each piece where it lies from the op that makes it to the last that reads it; the
/// ops below it, as high as their bytes (or their times, if they were run); the bytes of each rank's weights.
std::string engine_chart(const nlohmann::ordered_json& report);

}  // namespace accord::cli
