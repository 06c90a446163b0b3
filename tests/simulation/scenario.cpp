#include "simulation/scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace accord::simulation {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, kStepKinds> kStepNames = {
    "barrier", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "ring",       "started",
    "threads", "window",     "split",     "shrink",     "grow",           "mismatch",   "reconfigure"};
constexpr std::array<std::string_view, 3> kFaultNames = {"kill", "pause", "abort"};

/// The usual time until a process has a communicator. A step of the scenario takes about a third of that.
constexpr std::uint64_t kStepsToCreate = 150;

// A few elements are packets, some hundred are several packets, and some thousand are several rounds.
/// Elements of a call. Many ranks get fewer, as a round of all_to_all has a message for each two ranks, and a call
/// shall end long before its timeout.
std::uint64_t draw_count(Random& random, int ranks) {
  constexpr std::uint64_t kPairs = 64;
  const auto pairs = static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(ranks);
  const auto few = [&](std::uint64_t count) { return pairs <= kPairs ? count : 1 + count * kPairs / pairs; };
  switch (random.below(3)) {
    case 0: return 1 + random.below(8);
    case 1: return few(1 + random.below(900));
    default: return few(1000 + random.below(3000));
  }
}

int draw_ranks(Random& random, const Limits& limits) {
  const int usual = std::min(limits.max_ranks, 8);
  if (limits.max_ranks > usual && random.one_in(20))
    return static_cast<int>(random.between(std::max(usual, limits.min_ranks), limits.max_ranks));
  return static_cast<int>(random.between(limits.min_ranks, std::max(usual, limits.min_ranks)));
}

}  // namespace

std::string_view to_string(StepKind kind) { return kStepNames[static_cast<std::size_t>(kind)]; }
std::string_view to_string(FaultKind kind) { return kFaultNames[static_cast<std::size_t>(kind)]; }

bool Scenario::has(FaultKind kind) const {
  return std::ranges::any_of(faults, [&](const Fault& fault) { return fault.kind == kind; });
}

void Scenario::forgive_wake_ups() {
  if (has(FaultKind::kPause)) return;
  timeout = std::max(timeout, 3 * kSecond);
  shrink_timeout = std::max(shrink_timeout, 2 * timeout);
}

Scenario scenario_of(std::uint64_t seed, const Limits& limits) {
  Random random(seed);
  Scenario scenario{.seed = seed, .ranks = draw_ranks(random, limits), .steps = {}, .faults = {}};
  const std::uint64_t steps = 1 + random.below(12);
  for (std::uint64_t i = 0; i < steps; ++i)
    scenario.steps.push_back(
        {.kind = static_cast<StepKind>(random.below(kStepKinds)), .count = draw_count(random, scenario.ranks)});
  const bool may_pause = random.one_in(3);
  scenario.timeout = may_pause ? random.spread(100 * kMillisecond, kSecond) : 3 * kSecond;
  // A rank that takes part in no reconfigure() waits in shrink() for the others, which wait for it there.
  scenario.shrink_timeout = scenario.timeout * random.between(may_pause ? 1 : 2, 4);
  const std::uint64_t faults = random.one_in(10) ? 0 : 1 + random.below(3);
  for (std::uint64_t i = 0; i < faults; ++i) {
    Fault fault{.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(scenario.ranks) + 1)),
                .step = 1 + random.below(random.one_in(6) ? kStepsToCreate : kStepsToCreate + 50 * steps)};
    if (may_pause && random.one_in(2)) {
      fault.kind = FaultKind::kPause;
      fault.duration = random.spread(kMillisecond, 3 * scenario.timeout);
    } else if (random.one_in(3)) {
      fault.kind = FaultKind::kAbort;
    }
    scenario.faults.push_back(fault);
  }
  scenario.forgive_wake_ups();
  return scenario;
}

std::string to_json(const Scenario& scenario) {
  json steps = json::array(), faults = json::array();
  for (const Step& step : scenario.steps) steps.push_back({{"kind", to_string(step.kind)}, {"count", step.count}});
  for (const Fault& fault : scenario.faults)
    faults.push_back(
        {{"kind", to_string(fault.kind)}, {"rank", fault.rank}, {"step", fault.step}, {"duration", fault.duration}});
  return json{{"seed", scenario.seed},
              {"ranks", scenario.ranks},
              {"timeout", scenario.timeout},
              {"shrink_timeout", scenario.shrink_timeout},
              {"steps", steps},
              {"faults", faults}}
      .dump();
}

Result<Scenario> scenario_from_json(std::string_view text) {
  const auto kind_of = [](const auto& names, const json& name) {
    const auto found = std::ranges::find(names, name.get<std::string>());
    if (found == names.end()) throw std::out_of_range(fmt::format("unknown kind {}", name.dump()));
    return static_cast<std::size_t>(found - names.begin());
  };
  try {
    const json object = json::parse(text);
    Scenario scenario{.seed = object.at("seed"),
                      .ranks = object.at("ranks"),
                      .timeout = object.at("timeout"),
                      .shrink_timeout = object.at("shrink_timeout"),
                      .steps = {},
                      .faults = {}};
    for (const json& step : object.at("steps"))
      scenario.steps.push_back(
          {.kind = static_cast<StepKind>(kind_of(kStepNames, step.at("kind"))), .count = step.at("count")});
    for (const json& fault : object.at("faults"))
      scenario.faults.push_back({.kind = static_cast<FaultKind>(kind_of(kFaultNames, fault.at("kind"))),
                                 .rank = fault.at("rank"),
                                 .step = fault.at("step"),
                                 .duration = fault.at("duration")});
    return scenario;
  } catch (const std::exception& error) {
    return Status(StatusCode::kCorrupt, fmt::format("not a scenario: {}", error.what()));
  }
}

}  // namespace accord::simulation
