// Progressive filling: all flows of a component (those that share links, directly or over others) grow together. The
// flow or link that is full first fixes its flows, and the others grow on.
#include "sim/flows.hpp"

#include <algorithm>

namespace accord::sim {

Flows::Flows(std::vector<double> capacities) : links_(capacities.size()), carried_(capacities.size()) {
  for (std::size_t i = 0; i < capacities.size(); ++i) links_[i].capacity = capacities[i];
}

FlowId Flows::start(double now, double bytes, std::span<const std::int32_t> route, double limit) {
  now_ = now;
  FlowId id = 0;
  if (free_.empty()) {
    id = static_cast<FlowId>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& started = flow(id);
  started.route.assign(route.begin(), route.end());
  started.limit = limit;
  started.left = bytes;
  started.rate = 0;
  started.since = now;
  started.active = true;
  for (const std::int32_t one : route) {
    link(one).flows.push_back(id);
    carried_[static_cast<std::size_t>(one)] += bytes;
    changed_.push_back(one);
  }
  if (route.empty()) alone_.push_back(id);
  return id;
}

void Flows::advance(Flow& flow) {
  flow.left = std::max(0.0, flow.left - flow.rate * (now_ - flow.since));
  flow.since = now_;
}

double Flows::next_end() {
  // Flows that end now end whatever the new rates are, so that rates are settled once for all changes of one time.
  if (const double now = next_known_end(); now <= now_) return now;
  settle();
  return next_known_end();
}

double Flows::next_known_end() {
  while (!ends_.empty()) {
    const Flow& next = flow(static_cast<FlowId>(ends_.top().what >> 32));
    if (next.active && next.version == static_cast<std::uint32_t>(ends_.top().what)) return ends_.top().time;
    ends_.pop();
  }
  return std::numeric_limits<double>::infinity();
}

FlowId Flows::end_next() {
  now_ = std::max(now_, ends_.top().time);
  const auto id = static_cast<FlowId>(ends_.top().what >> 32);
  ends_.pop();
  Flow& ended = flow(id);
  ended.active = false;
  for (const std::int32_t one : ended.route) {
    std::vector<FlowId>& flows = link(one).flows;
    *std::find(flows.begin(), flows.end(), id) = flows.back();
    flows.pop_back();
    changed_.push_back(one);
  }
  free_.push_back(id);
  return id;
}

void Flows::assign(FlowId id, double rate) {
  Flow& given = flow(id);
  for (const std::int32_t one : given.route) {
    link(one).left -= rate;
    --link(one).waiting;
  }
  if (rate == given.rate) return;
  advance(given);
  given.rate = rate;
  ++given.version;
  ends_.push(now_ + given.left / rate, (std::uint64_t{id} << 32) | given.version);
}

void Flows::settle() {
  for (const FlowId id : alone_) assign(id, flow(id).limit);
  alone_.clear();
  if (changed_.empty()) return;
  std::vector<std::int32_t> component;
  std::vector<FlowId> waiting;
  const auto add_link = [&](std::int32_t id) {
    LinkState& state = link(id);
    if (state.in_component) return;
    state.in_component = true;
    state.left = state.capacity;
    state.waiting = static_cast<int>(state.flows.size());
    component.push_back(id);
  };
  for (const std::int32_t id : changed_) add_link(id);
  changed_.clear();
  for (std::size_t i = 0; i < component.size(); ++i)
    for (const FlowId id : link(component[i]).flows)
      for (const std::int32_t one : flow(id).route) add_link(one);
  for (const std::int32_t id : component)
    for (const FlowId one : link(id).flows)
      if (flow(one).route.front() == id) waiting.push_back(one);
  while (!waiting.empty()) {
    double share = std::numeric_limits<double>::infinity();
    for (const std::int32_t id : component)
      if (link(id).waiting > 0) share = std::min(share, std::max(0.0, link(id).left) / link(id).waiting);
    for (const FlowId id : waiting) share = std::min(share, flow(id).limit);
    // Shares that differ by rounding only are one.
    const double bound = share * (1 + 1e-12);
    const auto is_full = [&](FlowId id) {
      if (flow(id).limit <= bound) return true;
      return std::any_of(flow(id).route.begin(), flow(id).route.end(),
                         [&](std::int32_t one) { return link(one).left / link(one).waiting <= bound; });
    };
    std::vector<FlowId> full, rest;
    for (const FlowId id : waiting) (is_full(id) ? full : rest).push_back(id);
    for (const FlowId id : full) assign(id, share);
    waiting = std::move(rest);
  }
  for (const std::int32_t id : component) link(id).in_component = false;
}

}  // namespace accord::sim
