// Progressive filling: all flows of a component (those that share links, directly or over others) grow together. The
// flow or link that is full first fixes its flows, and the others grow on.
#include "sim/flows.hpp"

#include <algorithm>

namespace accord::sim {
namespace {

// An item of `shares_` is a link, or a route with a limit.
constexpr std::uint64_t kIsRoute = std::uint64_t{1} << 32;

}  // namespace

Flows::Flows(std::vector<double> capacities) : links_(capacities.size()), carried_(capacities.size()) {
  for (std::size_t i = 0; i < capacities.size(); ++i) links_[i].capacity = capacities[i];
}

RouteId Flows::add_route(std::span<const std::int32_t> links) {
  routes_.emplace_back().links.assign(links.begin(), links.end());
  return static_cast<RouteId>(routes_.size() - 1);
}

FlowId Flows::start(double now, double bytes, RouteId id) { return add_flow(now, bytes, id); }

FlowId Flows::start_limited(double now, double bytes, std::span<const std::int32_t> links, double limit) {
  RouteId id = 0;
  if (free_routes_.empty()) {
    id = add_route(links);
  } else {
    id = free_routes_.back();
    free_routes_.pop_back();
    route(id).links.assign(links.begin(), links.end());
  }
  route(id).limit = limit;
  route(id).is_for_one_flow = true;
  return add_flow(now, bytes, id);
}

FlowId Flows::add_flow(double now, double bytes, RouteId id) {
  now_ = now;
  const FlowId flow = route_of_.add(id);
  Route& taken = route(id);
  if (taken.flows++ == 0) {
    taken.served = taken.rate = 0;
    taken.since = now;
    for (const std::int32_t one : taken.links) link(one).routes.push_back(id);
  }
  serve(taken);
  taken.ends.push(taken.served + bytes, flow);
  for (const std::int32_t one : taken.links) carried_[static_cast<std::size_t>(one)] += bytes;
  mark_changed(id);
  return flow;
}

void Flows::mark_changed(RouteId id) {
  Route& changed = route(id);
  if (changed.has_changed_flows) return;
  changed.has_changed_flows = true;
  changed_.insert(changed_.end(), changed.links.begin(), changed.links.end());
  if (changed.links.empty()) changed_alone_.push_back(id);
}

void Flows::serve(Route& route) {
  route.served += route.rate * (now_ - route.since);
  route.since = now_;
}

void Flows::push_end(RouteId id) {
  Route& one = route(id);
  const double left = std::max(0.0, one.ends.top().time - one.served);
  ends_.set(id, now_ + left / one.rate);
}

double Flows::next_event() {
  // Flows that end now end whatever the new rates are, so that rates are settled once for all changes of one time.
  if (const double now = next_known_end(); now <= now_) return now;
  settle();
  return next_known_end();
}

double Flows::next_known_end() const {
  return ends_.empty() ? std::numeric_limits<double>::infinity() : ends_.top_time();
}

std::optional<FlowId> Flows::advance() {
  now_ = std::max(now_, ends_.top_time());
  const RouteId id = ends_.top();
  Route& one = route(id);
  const FlowId flow = one.ends.top().what;
  one.served = one.ends.top().time;
  one.since = now_;
  one.ends.pop();
  route_of_.remove(flow);
  mark_changed(id);
  if (--one.flows > 0) {
    push_end(id);
    return flow;
  }
  ends_.remove(id);
  for (const std::int32_t each : one.links) {
    std::vector<RouteId>& routes = link(each).routes;
    *std::find(routes.begin(), routes.end(), id) = routes.back();
    routes.pop_back();
  }
  one.has_changed_flows = false;
  if (one.is_for_one_flow) free_routes_.push_back(id);
  return flow;
}

void Flows::assign(RouteId id, double rate) {
  Route& given = route(id);
  given.settled = settlements_;
  for (const std::int32_t one : given.links) {
    link(one).left -= rate * given.flows;
    link(one).waiting -= given.flows;
  }
  if (rate == given.rate && !given.has_changed_flows) return;
  given.has_changed_flows = false;
  serve(given);
  given.rate = rate;
  push_end(id);
}

void Flows::collect_component() {
  component_.clear();
  const auto add = [this](std::int32_t id) {
    LinkState& state = link(id);
    if (state.in_component) return;
    state.in_component = true;
    state.left = state.capacity;
    state.waiting = 0;
    component_.push_back(id);
  };
  for (const std::int32_t id : changed_) add(id);
  changed_.clear();
  for (std::size_t i = 0; i < component_.size(); ++i)
    for (const RouteId id : link(component_[i]).routes) {
      link(component_[i]).waiting += route(id).flows;
      for (const std::int32_t one : route(id).links) add(one);
    }
}

void Flows::settle() {
  if (changed_.empty() && changed_alone_.empty()) return;
  ++settlements_;
  for (const RouteId id : changed_alone_)
    if (route(id).flows > 0) assign(id, route(id).limit);
  changed_alone_.clear();
  collect_component();
  for (const std::int32_t id : component_) {
    const LinkState& state = link(id);
    if (state.waiting > 0) shares_.push(state.left / state.waiting, static_cast<std::uint64_t>(id));
    for (const RouteId one : state.routes)
      if (route(one).limit < std::numeric_limits<double>::infinity()) shares_.push(route(one).limit, kIsRoute | one);
  }
  while (!shares_.empty()) {
    const auto [share, order, item] = shares_.top();
    shares_.pop();
    if ((item & kIsRoute) != 0) {
      const auto id = static_cast<RouteId>(item);
      if (route(id).settled != settlements_) assign(id, share);
      continue;
    }
    LinkState& full = link(static_cast<std::int32_t>(item));
    if (full.waiting <= 0) continue;
    // Flows that were given less than this share since it was computed leave more. Shares that differ by rounding only
    // are one.
    const double now = std::max(0.0, full.left) / full.waiting;
    if (now > share * (1 + 1e-12)) {
      shares_.push(now, item);
      continue;
    }
    for (const RouteId id : full.routes)
      if (route(id).settled != settlements_) assign(id, share);
  }
  for (const std::int32_t id : component_) link(id).in_component = false;
}

}  // namespace accord::sim
