// Each plan is registered like a user's own, so it runs as every other plan does. Plans that differ only in how often
// they repeat the primitive are measured in turns.
#include "cli/sim/plan_probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "accord/plan.hpp"
#include "plan/builder.hpp"
#include "plan/json.hpp"

namespace accord::cli {
namespace {

constexpr std::array kRoundTrips = {1, 4, 7, 10, 13};
constexpr std::array kSteps = {16, 32, 48, 64};

// A signal goes to rank 1 and one comes back, again and again.
Result<plan::Plan> round_trips_plan(int times) {
  plan::PlanBuilder plan(fmt::format("calibrate_round_trips_{}", times), {.collective = Collective::kBarrier}, 2, {});
  for (int id = 0; id < times; ++id) {
    plan.on(0).signal(1, id).wait(1, id);
    plan.on(1).wait(0, id).signal(0, id);
  }
  return std::move(plan).build();
}

Result<plan::Plan> steps_plan(int times) {
  constexpr int kChunks = 8;
  plan::PlanBuilder plan(fmt::format("calibrate_steps_{}", times), {.collective = Collective::kBroadcast}, 1,
                         {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = kChunks});
  for (int i = 0; i < times; ++i) plan.on(0).copy(plan::input(0, 0), {plan::scratch(0, i % kChunks)});
  return std::move(plan).build();
}

template <std::size_t count>
Result<std::vector<plan::Plan>> plans_of(Result<plan::Plan> (*make)(int), const std::array<int, count>& times) {
  std::vector<plan::Plan> plans;
  for (const int one : times) {
    ACCORD_ASSIGN_OR_RETURN(plan::Plan plan, make(one));
    ACCORD_RETURN_IF_ERROR(register_plan(plan::to_json(plan)));
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace

// The spread is that of the rounds.
sim::Figure PlanProbes::figure_of(const Measured& measured) const {
  return {statistic_ == sim::Statistic::kMedian ? measured.median : measured.minimum,
          sim::figure_of(measured.round_medians).spread};
}

Result<Communicator> PlanProbes::communicator(const std::string& name, const std::string& select) {
  ACCORD_ASSIGN_OR_RETURN(std::optional<Communicator> made,
                          ranks_.split(0, ranks_.rank(), CommunicatorOptions{.name = name, .select = select}));
  if (!made) return Status(StatusCode::kInternal, fmt::format("{} was made without this rank", name));
  return *made;
}

Result<std::optional<std::vector<sim::Repeated>>> PlanProbes::measure(Collective collective, std::size_t bytes,
                                                                      const std::vector<plan::Plan>& plans,
                                                                      const std::vector<int>& times) {
  std::vector<Contender> contenders;
  for (const plan::Plan& plan : plans) {
    ACCORD_ASSIGN_OR_RETURN(Communicator comm,
                            communicator(plan.name, fmt::format("{}:0-inf={}", to_string(collective), plan.name)));
    contenders.push_back({plan.name, std::move(comm)});
  }
  ACCORD_ASSIGN_OR_RETURN(const BenchOperation* operation, bench_operation(to_string(collective)));
  ACCORD_ASSIGN_OR_RETURN(
      const auto measured,
      meter_.measure({.operation = *operation, .bytes = bytes, .dtype = DType::kUInt8, .ranks = ranks_.size()}, effort_,
                     contenders));
  if (!measured) return std::optional<std::vector<sim::Repeated>>();
  std::vector<sim::Repeated> all;
  for (std::size_t i = 0; i < times.size(); ++i) all.push_back({times[i], figure_of((*measured)[i])});
  return std::optional(std::move(all));
}

Result<std::optional<std::vector<sim::Repeated>>> PlanProbes::round_trips() {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<plan::Plan> plans, plans_of(round_trips_plan, kRoundTrips));
  return measure(Collective::kBarrier, 0, plans, {kRoundTrips.begin(), kRoundTrips.end()});
}

Result<std::optional<std::vector<sim::Repeated>>> PlanProbes::steps() {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<plan::Plan> plans, plans_of(steps_plan, kSteps));
  return measure(Collective::kBroadcast, 8, plans, {kSteps.begin(), kSteps.end()});
}

Result<std::optional<sim::Figure>> PlanProbes::measure(std::string_view name, std::size_t bytes) {
  std::vector<Contender> contenders;
  ACCORD_ASSIGN_OR_RETURN(Communicator comm, communicator(fmt::format("calibrate {} {}", name, bytes), ""));
  contenders.push_back({std::string(name), std::move(comm)});
  ACCORD_ASSIGN_OR_RETURN(const BenchOperation* operation, bench_operation(name));
  ACCORD_ASSIGN_OR_RETURN(
      const auto measured,
      meter_.measure({.operation = *operation, .bytes = bytes, .dtype = DType::kUInt8, .ranks = ranks_.size()}, effort_,
                     contenders));
  if (!measured) return std::optional<sim::Figure>();
  return std::optional(figure_of(measured->front()));
}

Result<std::optional<sim::Figure>> PlanProbes::call() { return measure("barrier", 0); }

Result<std::optional<sim::Figure>> PlanProbes::message(std::size_t bytes) {
  return measure("send_recv_bandwidth", bytes);
}

}  // namespace accord::cli
