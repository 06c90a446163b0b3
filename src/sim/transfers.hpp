#pragma once
// Bytes under way over the links of a network, in virtual time.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace accord::sim {

using FlowId = std::uint32_t;
using RouteId = std::uint32_t;

/// How flows share links. Times never go back: each call is at the time of the one before, or later.
class Transfers {
 public:
  virtual ~Transfers() = default;

  /// A route over `links`, in order. A link that occurs k times stands for k links, each with the same flows.
  virtual RouteId add_route(std::span<const std::int32_t> links) = 0;
  /// Starts a flow at `now`. Ids of flows that have ended are used again. REQUIRES: bytes > 0.
  virtual FlowId start(double now, double bytes, RouteId route) = 0;
  /// The time of the next event, infinity if no flow is under way.
  virtual double next_event() = 0;
  /// Lets it happen; returns the flow that ends with it, if one does. REQUIRES: next_event() was called, and is finite.
  virtual std::optional<FlowId> advance() = 0;
  /// Bytes that each link has carried, with those under way.
  virtual const std::vector<double>& carried() const = 0;
};

}  // namespace accord::sim
