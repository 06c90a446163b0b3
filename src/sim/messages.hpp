#pragma once
// Messages between hosts in virtual time. Data and events from a rank to another arrive in the order in which they were
// sent, and data of one channel flow one after the other.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/network.hpp"
#include "sim/pool.hpp"
#include "sim/program.hpp"
#include "sim/transfers.hpp"

namespace accord::sim {

/// How messages share the links of a network.
enum class Sharing : std::uint8_t {
  kFair,    ///< max-min fairness (flows.hpp)
  kQueues,  ///< one after the other on each link (queues.hpp): much faster to simulate
};

struct Message {
  double bytes = 0;  ///< 0: only an event
  double begin = 0;  ///< when the sender began
  double sent = 0;   ///< when it had done its part
  std::uint32_t event = kNone;
  std::uint64_t round = 0;
};

/// An event of a round has arrived.
struct Delivery {
  std::uint32_t event = 0;
  std::uint64_t round = 0;
  double time = 0;
};

class Messages {
 public:
  /// The arguments must outlive it. `network`: null for one host, where nothing is sent. `period`: the hosts that stand
  /// for all others.
  Messages(const Programs& programs, const topology::Topology& topology, const Network* network, int nics, int period,
           Sharing sharing);

  /// `now`: the time, not before that of any event.
  void send(double now, std::uint32_t channel, const Message& message);
  double next_event() { return links_->next_event(); }
  void advance(double now);

  /// Events that have arrived since the last call; the times of some are later than now.
  std::vector<Delivery>& delivered() { return delivered_; }
  /// Bytes that each link has carried, of those that stand for others.
  const std::vector<double>& carried() const { return links_->carried(); }

 private:
  static constexpr std::uint32_t kUnknownRoute = 0xffffffff;
  struct Item {
    Message message;
    std::uint32_t next = kNone;
  };
  struct ChannelState {
    std::uint32_t first = kNone, last = kNone;  // items; the data of the first one are under way
    std::uint32_t path = kUnknownRoute;
    double arrived = 0;  // when the last one has arrived
  };
  struct Path {
    RouteId route = 0;
    double latency = 0;
  };

  std::uint32_t path_of(std::uint32_t channel);
  void start_next(double now, std::uint32_t channel);
  void deliver(ChannelState& channel, double sent);

  const Programs& programs_;
  const topology::Topology& topology_;
  const Network* network_;
  int nics_, period_;
  std::unique_ptr<Transfers> links_;
  std::vector<ChannelState> channels_;
  Pool<Item> items_;
  std::vector<Path> paths_;
  std::unordered_map<std::uint64_t, std::uint32_t> path_between_;  // two NICs
  std::vector<std::uint32_t> channel_of_;                          // by flow
  std::vector<Delivery> delivered_;
};

}  // namespace accord::sim
