#include "sim/queues.hpp"

#include <algorithm>
#include <limits>

namespace accord::sim {

Queues::Queues(std::vector<double> capacities)
    : capacities_(std::move(capacities)), free_at_(capacities_.size()), carried_(capacities_.size()) {}

RouteId Queues::add_route(std::span<const std::int32_t> links) {
  links_.insert(links_.end(), links.begin(), links.end());
  first_link_.push_back(static_cast<std::uint32_t>(links_.size()));
  return static_cast<RouteId>(first_link_.size() - 2);
}

FlowId Queues::start(double now, double bytes, RouteId route) {
  const FlowId id = flows_.add({.bytes = bytes, .end = now, .route = route, .next = first_link_[route]});
  events_.push(now, id);
  return id;
}

double Queues::next_event() { return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time; }

std::optional<FlowId> Queues::advance() {
  const auto [now, order, id] = events_.top();
  events_.pop();
  Flow& flow = flows_[id];
  const std::uint32_t end_of_route = first_link_[flow.route + 1];
  if (flow.next == end_of_route) {
    flows_.remove(id);
    return id;
  }
  // A link that is busy delays the first bytes, and with them all others.
  const auto link = static_cast<std::size_t>(links_[flow.next++]);
  const double begin = std::max(now, free_at_[link]);
  free_at_[link] = begin + flow.bytes / capacities_[link];
  carried_[link] += flow.bytes;
  flow.end = std::max(flow.end, free_at_[link]);
  events_.push(flow.next < end_of_route ? begin : flow.end, id);
  return std::nullopt;
}

}  // namespace accord::sim
