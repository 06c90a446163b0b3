#include "cli/tune/simulated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/config.hpp"
#include "base/text.hpp"
#include "cli/tune/candidates.hpp"
#include "plan/selector.hpp"
#include "sim/estimate.hpp"

namespace accord::cli {
namespace {

// Nullopt if these ranks cannot run it.
Result<std::optional<double>> seconds_of(const plan::Choice& choice, std::size_t bytes, const sim::Machine& machine,
                                         const topology::Topology& topology) {
  const sim::Call call{.request = {.collective = choice.algorithm->collective,
                                   .dtype = DType::kFloat32,
                                   .op = ReduceOp::kSum,
                                   .count = bytes / size_of(DType::kFloat32)},
                       .slot_bytes = choice.slot_bytes != 0 ? choice.slot_bytes : config()->hints.slot_bytes};
  Result<sim::Programs> programs = sim::programs_of(*choice.algorithm, call, machine, topology, true);
  if (!programs.ok()) return std::optional<double>();
  ACCORD_ASSIGN_OR_RETURN(const double seconds,
                          sim::estimate_seconds(*programs, machine, topology, sim::Sharing::kQueues));
  return std::optional(seconds);
}

// Removes candidates that take at least ten times as long as the fastest, and fall further behind as sizes grow: their
// rounds take most of the time of a simulation. `behind`: by name, how far they were behind at the size before.
void drop_hopeless(const TunedPoint& point, std::map<std::string, double>& behind, std::vector<Candidate>& candidates) {
  constexpr double kHopeless = 10, kGrowth = 1.05;
  double best = seconds_of(point.timings[0]);
  for (const Timing& timing : point.timings) best = std::min(best, seconds_of(timing));
  for (const Timing& timing : point.timings) {
    const double now = seconds_of(timing) / best;
    double& before = behind.try_emplace(timing.candidate, now).first->second;
    if (now > kHopeless && now > kGrowth * before)
      std::erase_if(candidates, [&](const Candidate& one) { return one.name == timing.candidate; });
    before = now;
  }
}

bool can_run(const Candidate& candidate, const topology::Topology& topology) {
  const plan::AlgorithmEntry& algorithm = *candidate.algorithm;
  return (topology.host_count() == 1 || algorithm.spans_hosts) &&
         (algorithm.fits == nullptr || algorithm.fits(topology));
}

}  // namespace

Result<std::vector<TunedPoint>> simulated_points(Collective collective, const std::vector<std::size_t>& sizes,
                                                 const sim::Machine& machine, const topology::Topology& topology,
                                                 const std::function<void(std::size_t bytes)>& announce) {
  ACCORD_ASSIGN_OR_RETURN(const plan::Selector selector, plan::Selector::create(""));
  std::vector<Candidate> candidates = all_candidates(collective);
  std::erase_if(candidates, [&](const Candidate& one) { return !can_run(one, topology); });
  std::vector<TunedPoint> points;
  std::map<std::string, double> behind;
  for (const std::size_t bytes : sizes) {
    announce(bytes);
    TunedPoint point{.bytes = bytes, .timings = {}};
    const auto add = [&](const std::string& name, const plan::Choice& choice) -> Status {
      ACCORD_ASSIGN_OR_RETURN(const std::optional<double> seconds, seconds_of(choice, bytes, machine, topology));
      if (seconds) point.timings.push_back({name, std::string(choice.algorithm->name), {*seconds}});
      return {};
    };
    ACCORD_ASSIGN_OR_RETURN(
        const plan::Choice chosen,
        selector.choose({.collective = collective, .bytes = bytes, .readable = topology.readable()}, topology));
    ACCORD_RETURN_IF_ERROR(add("default", chosen));
    if (point.timings.empty())
      return Status(StatusCode::kUnsupported,
                    fmt::format("{} of {} cannot be simulated", chosen.algorithm->name, bytes_text(bytes)));
    for (const Candidate& candidate : candidates) {
      const bool is_default = candidate.slot_bytes == 0 && candidate.algorithm == chosen.algorithm;
      if (!is_default && bytes >= candidate.from_bytes)
        ACCORD_RETURN_IF_ERROR(add(candidate.name, {candidate.algorithm, candidate.slot_bytes}));
    }
    drop_hopeless(point, behind, candidates);
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace accord::cli
