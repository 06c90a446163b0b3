// The public classes forward to Group and Handle.
#include "accord/expert_parallel.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "expert/group.hpp"

namespace accord {

ExpertHandle::ExpertHandle(std::shared_ptr<expert::Handle> state) : state_(std::move(state)) {}

bool ExpertHandle::prepared() const { return state_->has_map(); }
Status ExpertHandle::fetch(Stream stream) const { return state_->fetch(stream); }
ExpertDeviceMap ExpertHandle::on_device() const { return state_->on_device(); }
int ExpertHandle::top_k() const { return state_->layer.top_k; }
int ExpertHandle::experts() const { return state_->placement->experts; }
int ExpertHandle::alignment() const { return state_->layer.alignment; }
std::uint64_t ExpertHandle::generation() const { return state_->generation; }
std::uint64_t ExpertHandle::fingerprint() const {
  state_->fetch_once();
  return state_->fingerprint;
}
std::int64_t ExpertHandle::tokens() const { return state_->tokens(); }

std::span<const std::int64_t> ExpertHandle::counts() const {
  state_->fetch_once();
  return std::span(state_->routing.counts).subspan(state_->first_place(), state_->last_place() - state_->first_place());
}
std::span<const std::int64_t> ExpertHandle::rows() const {
  state_->fetch_once();
  return std::span(state_->routing.rows).subspan(state_->first_place(), state_->last_place() - state_->first_place());
}
std::int64_t ExpertHandle::recv_rows() const {
  state_->fetch_once();
  return state_->recv_rows();
}
std::int64_t ExpertHandle::total_rows() const {
  state_->fetch_once();
  return state_->routing.ranks[state_->rank].total_rows;
}
std::span<const ExpertRankCounts> ExpertHandle::ranks() const {
  state_->fetch_once();
  return state_->routing.ranks;
}
std::span<const ExpertChoice> ExpertHandle::dropped() const {
  state_->fetch_once();
  return state_->routing.dropped;
}

void ExpertHandle::slots(std::span<std::int32_t> ranks, std::span<std::int32_t> slots) const {
  state_->fetch_once();
  const expert::Routing& routing = state_->routing;
  const std::int64_t first = routing.choice(state_->rank, 0, 0);
  for (std::int64_t i = 0; i < tokens() * top_k(); ++i) {
    const bool is_kept = routing.place[first + i] >= 0;
    ranks[i] = is_kept ? state_->holder(first + i) : -1;
    slots[i] = is_kept ? routing.slot[first + i] : -1;
  }
}

void ExpertHandle::sources(std::span<ExpertChoice> sources) const {
  state_->fetch_once();
  std::fill(sources.begin(), sources.end(), ExpertChoice{-1, -1, -1});
  const expert::Routing& routing = state_->routing;
  routing.for_each_choice([&](Rank rank, std::int64_t token, int k, std::int64_t choice) {
    if (routing.place[choice] >= 0 && state_->holder(choice) == state_->rank)
      sources[routing.slot[choice]] = {rank, static_cast<std::int32_t>(token), k};
  });
}

void ExpertHandle::traffic(std::span<std::int64_t> rows) const {
  state_->fetch_once();
  std::ranges::copy(state_->traffic, rows.begin());
}
void ExpertHandle::loads(std::span<std::int64_t> choices) const {
  state_->fetch_once();
  std::ranges::copy(state_->loads, choices.begin());
}

ExpertGroup::ExpertGroup(std::shared_ptr<expert::Group> group) : group_(std::move(group)) {}

Result<ExpertGroup> ExpertGroup::create(Communicator& communicator, ExpertGroupConfig config) {
  return create(communicator, Result<ExpertGroupConfig>(std::move(config)));
}

Result<ExpertGroup> ExpertGroup::create(Communicator& communicator, Result<ExpertGroupConfig> config) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<expert::Group> group, expert::Group::create(communicator, std::move(config)));
  return ExpertGroup(std::move(group));
}

Rank ExpertGroup::rank() const { return group_->setup().rank(); }
int ExpertGroup::size() const { return group_->setup().size(); }
const Communicator& ExpertGroup::communicator() const { return group_->setup().communicator; }
const ExpertGroupConfig& ExpertGroup::config() const { return group_->setup().config; }
std::span<const int> ExpertGroup::local_experts() const { return group_->setup().placement->experts_of(rank()); }
ExpertStatistics ExpertGroup::statistics() const { return group_->statistics(); }
std::string ExpertGroup::report_json() const { return expert::to_json(group_->report()); }
Status ExpertGroup::add_window(const Window& window) { return group_->add_window(window); }
void ExpertGroup::close() { group_->close(); }

Result<ExpertHandle> ExpertGroup::make_handle(ExpertLayerConfig config) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<expert::Handle> handle, group_->make_handle(config));
  return ExpertHandle(std::move(handle));
}

Status ExpertGroup::prepare(const ExpertHandle& handle, const ExpertRouting& routing) {
  return group_->prepare(*handle.state(), routing);
}
Status ExpertGroup::dispatch(const ExpertHandle& handle, const ExpertDispatch& call) {
  return group_->dispatch(*handle.state(), call);
}
Status ExpertGroup::combine(const ExpertHandle& handle, const ExpertCombine& call) {
  return group_->combine(*handle.state(), call);
}
Status ExpertGroup::dispatch_backward(const ExpertHandle& handle, const ExpertDispatchBackward& call) {
  return group_->dispatch_backward(*handle.state(), call);
}
Status ExpertGroup::combine_backward(const ExpertHandle& handle, const ExpertCombineBackward& call) {
  return group_->combine_backward(*handle.state(), call);
}
Status ExpertGroup::decline(const ExpertHandle& handle, bool prepares, const Status& why) {
  return group_->decline(*handle.state(), prepares, why);
}

}  // namespace accord
