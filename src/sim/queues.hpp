#pragma once
// Flows that queue for links: each link serves one flow after the other, in the order in which their first bytes reach
// it. A flow is on several links at once, as its bytes go on while the rest follows. It costs a few events per flow,
// whatever else is under way.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/event_queue.hpp"
#include "sim/pool.hpp"
#include "sim/transfers.hpp"

namespace accord::sim {

class Queues final : public Transfers {
 public:
  /// capacities: of each link, in bytes per second.
  explicit Queues(std::vector<double> capacities);

  RouteId add_route(std::span<const std::int32_t> links) override;
  FlowId start(double now, double bytes, RouteId route) override;
  double next_event() override;
  std::optional<FlowId> advance() override;
  const std::vector<double>& carried() const override { return carried_; }

 private:
  struct Flow {
    double bytes = 0;
    double end = 0;  // when the last byte has left the links so far
    RouteId route = 0;
    std::uint32_t next = 0;  // the place in the route of the link that its first bytes have reached
  };

  std::vector<std::uint32_t> first_link_ = {0};  // by route, into links_; one more than there are routes
  std::vector<std::int32_t> links_;
  std::vector<double> capacities_, free_at_, carried_;
  Pool<Flow> flows_;
  EventQueue<FlowId> events_;  // first bytes reach a link, or the last one has left the last link
};

}  // namespace accord::sim
