#pragma once
// Flows that share links fairly: no flow can get more without one getting less that has no more than it (max-min
// fairness; Bertsekas and Gallager, Data Networks, section 6.5).

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/indexed_queue.hpp"
#include "sim/pool.hpp"
#include "sim/transfers.hpp"

namespace accord::sim {

/// Rates change whenever a flow starts or ends, among the flows that it shares links with, also over others. Flows of
/// one route have the same rate, and so cost no more than one flow when rates change.
class Flows : public Transfers {
 public:
  /// capacities: of each link, in bytes per second.
  explicit Flows(std::vector<double> capacities);

  RouteId add_route(std::span<const std::int32_t> links) override;
  FlowId start(double now, double bytes, RouteId route) override;
  /// The same for a flow of at most `limit` bytes per second.
  FlowId start_limited(double now, double bytes, std::span<const std::int32_t> links, double limit);

  /// Settles the rates, unless a flow ends at once.
  double next_event() override;
  std::optional<FlowId> advance() override;

  /// Bytes per second of a flow under way, once next_event() has settled the rates.
  double rate(FlowId id) const { return routes_[route_of_[id]].rate; }
  const std::vector<double>& carried() const override { return carried_; }

 private:
  struct Route {
    std::vector<std::int32_t> links;
    double limit = std::numeric_limits<double>::infinity();
    bool is_for_one_flow = false;
    std::uint32_t flows = 0;
    double rate = 0;    // of each flow
    double served = 0;  // bytes that each flow under way since the route's first one has got, at `since`
    double since = 0;
    EventQueue<FlowId> ends;  // by the value of `served` at which they end
    bool has_changed_flows = false;
    std::uint64_t settled = 0;  // the last settle() that has given it a rate
  };
  struct LinkState {
    double capacity = 0;
    std::vector<RouteId> routes;  // with flows
    double left = 0;              // capacity that is not assigned yet, during settle()
    double waiting = 0;           // flows without a rate yet, during settle()
    bool in_component = false;
  };

  FlowId add_flow(double now, double bytes, RouteId id);
  double next_known_end() const;  // with the rates that were settled last
  void serve(Route& route);
  void push_end(RouteId id);
  void mark_changed(RouteId id);
  void collect_component();
  void settle();
  void assign(RouteId id, double rate);
  Route& route(RouteId id) { return routes_[id]; }
  LinkState& link(std::int32_t id) { return links_[static_cast<std::size_t>(id)]; }

  double now_ = 0;
  std::vector<Route> routes_;
  std::vector<RouteId> free_routes_;  // of flows with limits that have ended
  Pool<RouteId> route_of_;            // by flow
  std::vector<LinkState> links_;
  std::vector<double> carried_;
  std::vector<std::int32_t> changed_;   // links whose flows have changed since settle()
  std::vector<RouteId> changed_alone_;  // the same for routes without links
  std::vector<std::int32_t> component_;
  EventQueue<std::uint64_t> shares_;  // during settle(): links by their share, routes by their limit
  IndexedQueue ends_;                 // of the next flow of each route
  std::uint64_t settlements_ = 0;
};

}  // namespace accord::sim
