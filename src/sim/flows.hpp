#pragma once
// Flows that share links fairly: no flow can get more without one getting less that has no more than it (max-min
// fairness; Bertsekas and Gallager, Data Networks, section 6.5).

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sim/event_queue.hpp"

namespace accord::sim {

using FlowId = std::uint32_t;

/// Bytes in transit over links, in virtual time. Rates change whenever a flow starts or ends, among the flows that it
/// shares links with, also over others.
class Flows {
 public:
  /// capacities: of each link, in bytes per second.
  explicit Flows(std::vector<double> capacities);

  /// Starts a flow at `now`, at most `limit` bytes per second. Ids of flows that have ended are used again. REQUIRES: a
  /// route without repetitions; `now` not before earlier events; bytes > 0.
  FlowId start(double now, double bytes, std::span<const std::int32_t> route,
               double limit = std::numeric_limits<double>::infinity());

  /// The time at which the next flow ends, infinity if none is under way. Settles the rates, unless a flow ends at
  /// once.
  double next_end();
  /// Ends that flow and returns it.
  FlowId end_next();

  /// Bytes per second of a flow under way, once next_end() has settled the rates.
  double rate(FlowId id) const { return flows_[id].rate; }
  /// Bytes that each link has carried so far.
  const std::vector<double>& carried() const { return carried_; }

 private:
  struct Flow {
    std::vector<std::int32_t> route;
    double limit = 0;
    double left = 0;  // bytes at `since`
    double rate = 0;
    double since = 0;
    std::uint32_t version = 0;  // events of earlier rates are void
    bool active = false;
  };
  struct LinkState {
    double capacity = 0;
    std::vector<FlowId> flows;
    double left = 0;  // capacity that is not assigned yet, during settle()
    int waiting = 0;  // flows without a rate yet, during settle()
    bool in_component = false;
  };

  double next_known_end();  // with the rates that were settled last
  void advance(Flow& flow);
  void settle();
  void assign(FlowId id, double rate);
  Flow& flow(FlowId id) { return flows_[id]; }
  LinkState& link(std::int32_t id) { return links_[static_cast<std::size_t>(id)]; }

  double now_ = 0;
  std::vector<Flow> flows_;
  std::vector<FlowId> free_;
  std::vector<LinkState> links_;
  std::vector<double> carried_;
  std::vector<std::int32_t> changed_;  // links whose flows have changed since settle()
  std::vector<FlowId> alone_;          // new flows without links
  EventQueue<std::uint64_t> ends_;     // flow and version
};

}  // namespace accord::sim
