// One JSON object, rewritten as a whole after each point: {"key", "points": [{"collective", "bytes", "timings":
// [{"candidate", "algorithm", "rounds"}]}]}. The file is a cache: if anything is wrong with it, it is treated as
// missing.
#include "cli/tune/kept_results.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

KeptResults::KeptResults(std::string path, const plan::TuningFacts& facts, const std::string& effort)
    : path_(std::move(path)),
      key_(fmt::format("{}, {}, {} cores, {} ranks, {}", facts.version, facts.processor, facts.cores, facts.ranks,
                       effort)) {
  const Result<std::string> text = read_file(path_);
  if (!text.ok()) return;
  const Json kept = Json::parse(*text, nullptr, false);
  try {
    if (kept.at("key") != key_) return;
    for (const Json& entry : kept.at("points")) {
      TunedPoint point{.bytes = entry.at("bytes").get<std::size_t>(), .timings = {}};
      for (const Json& timing : entry.at("timings"))
        point.timings.push_back({.candidate = timing.at("candidate").get<std::string>(),
                                 .algorithm = timing.at("algorithm").get<std::string>(),
                                 .rounds = timing.at("rounds").get<std::vector<double>>()});
      if (!point.timings.empty()) points_[{entry.at("collective").get<std::string>(), point.bytes}] = std::move(point);
    }
  } catch (const Json::exception&) {
    points_.clear();
  }
}

std::optional<TunedPoint> KeptResults::find(Collective collective, std::size_t bytes) const {
  const auto found = points_.find({std::string(to_string(collective)), bytes});
  return found == points_.end() ? std::nullopt : std::optional(found->second);
}

Status KeptResults::add(Collective collective, const TunedPoint& point) {
  points_[{std::string(to_string(collective)), point.bytes}] = point;
  Json kept = {{"key", key_}, {"points", Json::array()}};
  for (const auto& [name_and_bytes, one] : points_) {
    Json timings = Json::array();
    for (const Timing& timing : one.timings)
      timings.push_back({{"candidate", timing.candidate}, {"algorithm", timing.algorithm}, {"rounds", timing.rounds}});
    kept["points"].push_back(
        {{"collective", name_and_bytes.first}, {"bytes", one.bytes}, {"timings", std::move(timings)}});
  }
  return write_file(path_, kept.dump() + "\n");
}

void KeptResults::drop() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace accord::cli
