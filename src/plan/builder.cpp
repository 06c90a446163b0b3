// Collects the steps of each requested rank, checks each as it is added, and keeps the first error for build(). Every
// signal id that a program uses, sending or waiting, counts for `signals`. Ranks that build only their own programs
// therefore get the same number, provided that each id is sent and awaited in their programs alike.

#include "plan/builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/step_rules.hpp"

namespace accord::plan {

PlanBuilder::PlanBuilder(std::string name, const Request& request, int size, Shape shape) : request_(request) {
  const bool is_whole = request.only_rank == Request::kAllRanks;
  if (is_whole) {
    request_.only_rank = 0;
    request_.rank_count = size;
  }
  plan_.name = std::move(name);
  plan_.collective = request.collective;
  plan_.size = size;
  plan_.root = request.root;
  plan_.input_chunks = shape.input_chunks;
  plan_.output_chunks = shape.output_chunks;
  plan_.scratch_chunks = shape.scratch_chunks;
  plan_.packet_chunks = shape.packet_chunks;
  plan_.partial_chunks = shape.partial_chunks;
  plan_.multicast_chunks = shape.multicast_chunks;
  first_error_ = (is_whole ? check_whole_shape(plan_) : check_shape(plan_)).with_context(to_string(plan_));
  for (const Rank rank : {request_.only_rank, request_.only_rank + request_.rank_count - 1})
    if (first_error_.ok() && (rank < 0 || rank >= size))
      first_error_ = {StatusCode::kInvalidArgument,
                      fmt::format("{}: there is no rank {}, only ranks 0-{}", to_string(plan_), rank, size - 1)};
  if (!first_error_.ok()) return;
  plan_.programs.resize(static_cast<std::size_t>(size));
  for (const Rank rank : ranks()) plan_.programs[static_cast<std::size_t>(rank)].lanes.resize(1);
}

std::vector<Rank> PlanBuilder::ranks() const {
  if (!first_error_.ok()) return {};
  std::vector<Rank> requested(static_cast<std::size_t>(request_.rank_count));
  std::iota(requested.begin(), requested.end(), request_.only_rank);
  return requested;
}

Result<Plan> PlanBuilder::build() && {
  if (!first_error_.ok()) return first_error_;
  return std::move(plan_);
}

PlanBuilder::OnRank& PlanBuilder::OnRank::lane(int index) {
  lane_ = index;
  return *this;
}

PlanBuilder::OnRank& PlanBuilder::OnRank::copy(Chunk source, std::vector<Chunk> destinations) {
  if (destinations.empty()) return *this;
  return add({.kind = StepKind::kCopy, .destinations = std::move(destinations), .sources = {source}});
}

PlanBuilder::OnRank& PlanBuilder::OnRank::reduce(std::vector<Chunk> sources, std::vector<Chunk> destinations) {
  if (sources.size() == 1 && sources[0].rank != kEveryRank) return copy(sources[0], std::move(destinations));
  return add({.kind = StepKind::kReduce, .destinations = std::move(destinations), .sources = std::move(sources)});
}

PlanBuilder::OnRank& PlanBuilder::OnRank::signal(Rank peer, int id) {
  return add({.kind = StepKind::kSignal, .peer = peer, .id = id, .destinations = {}, .sources = {}});
}

PlanBuilder::OnRank& PlanBuilder::OnRank::wait(Rank peer, int id) {
  return add({.kind = StepKind::kWait, .peer = peer, .id = id, .destinations = {}, .sources = {}});
}

PlanBuilder::OnRank& PlanBuilder::OnRank::put_packets(Chunk source, Chunk peer_packets) {
  return add(
      {.kind = StepKind::kPutPackets, .peer = peer_packets.rank, .destinations = {peer_packets}, .sources = {source}});
}

PlanBuilder::OnRank& PlanBuilder::OnRank::lane_barrier(int id) {
  return add({.kind = StepKind::kLaneBarrier, .id = id, .destinations = {}, .sources = {}});
}

PlanBuilder::OnRank& PlanBuilder::OnRank::add(Step step) {
  PlanBuilder& builder = *builder_;
  if (!builder.first_error_.ok()) return *this;
  Plan& plan = builder.plan_;
  Status status = check_step(plan, rank_, step);
  if (status.ok() && (lane_ < 0 || lane_ >= kMaxLanes)) {
    status = {StatusCode::kInvalidArgument, fmt::format("a rank has lanes 0-{}", kMaxLanes - 1)};
  }
  const bool recorded = builder.request_.includes(rank_);
  if (status.ok() && !recorded) return *this;

  const auto lane_index = static_cast<std::size_t>(lane_);
  if (!status.ok()) {
    const bool known = rank_ >= 0 && rank_ < plan.size && lane_ >= 0 && lane_ < kMaxLanes && recorded;
    const std::vector<Lane>* lanes = known ? &plan.programs[static_cast<std::size_t>(rank_)].lanes : nullptr;
    const int index = lanes && lane_index < lanes->size() ? static_cast<int>((*lanes)[lane_index].steps.size()) : 0;
    builder.first_error_ = step_error(plan, {rank_, lane_, index}, step, status.message());
    return *this;
  }
  std::vector<Lane>& lanes = plan.programs[static_cast<std::size_t>(rank_)].lanes;
  if (lanes.size() <= lane_index) lanes.resize(lane_index + 1);
  if (step.kind == StepKind::kSignal || step.kind == StepKind::kWait)
    plan.signals = std::max(plan.signals, step.id + 1);
  lanes[lane_index].steps.push_back(std::move(step));
  return *this;
}

}  // namespace accord::plan
