#pragma once
// Messages between hosts in virtual time. Data and events from a rank to another arrive in the order in which they were
// sent, and data of one channel flow one after the other.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "sim/journal.hpp"
#include "sim/network.hpp"
#include "sim/pool.hpp"
#include "sim/transfers.hpp"
#include "topology/topology.hpp"

namespace accord::sim {

/// How messages share the links of a network.
enum class Sharing : std::uint8_t {
  kFair,    ///< max-min fairness (flows.hpp)
  kQueues,  ///< one after the other on each link (queues.hpp): much faster to simulate
};

/// An event of a round of a call, which a message brings.
struct MessageEvent {
  std::uint32_t call = 0;
  std::uint32_t event = kNone;  ///< kNone: the message has none
  std::uint64_t round = 0;
  std::uint32_t sender = kNone;  ///< the journal's entry
};

struct Message {
  double bytes = 0;  ///< 0: only an event
  double begin = 0;  ///< when the sender began
  double sent = 0;   ///< when it had done its part
  MessageEvent event;
};

struct Delivery {
  MessageEvent event;
  double time = 0;
};

class Messages {
 public:
  /// The arguments must outlive it. `network`: null for one host, where nothing is sent. `period`: the hosts that stand
  /// for all others. `journal`: null, or where transfers are entered.
  Messages(const topology::Topology& topology, const Network* network, int nics, int period, Sharing sharing,
           Journal* journal);

  /// Returns the number of a new channel between ranks of different hosts.
  std::uint32_t open(Rank from, Rank to);
  /// No more is sent; what is under way still arrives.
  void close(std::uint32_t channel);
  /// `now`: the time, not before that of any event.
  void send(double now, std::uint32_t channel, const Message& message);
  double next_event() { return links_->next_event(); }
  void advance(double now);

  /// Events that have arrived since the last call; the times of some are later than now.
  std::vector<Delivery>& delivered() { return delivered_; }
  /// Bytes that each link has carried, of those that stand for others.
  const std::vector<double>& carried() const { return links_->carried(); }

 private:
  struct Item {
    Message message;
    std::uint32_t next = kNone;
  };
  struct ChannelState {
    std::uint32_t first = kNone, last = kNone;  // items; the data of the first one are under way
    std::uint32_t path = 0;
    double arrived = 0;  // when the last one has arrived
    double begun = 0;    // when the data under way began to flow
    bool is_closed = false;
  };
  struct Path {
    RouteId route = 0;
    double latency = 0;
  };

  std::uint32_t path_between(Rank from, Rank to);
  void start_next(double now, std::uint32_t channel);
  void deliver(ChannelState& channel, double sent);

  const topology::Topology& topology_;
  const Network* network_;
  int nics_, period_;
  Journal* journal_;
  std::unique_ptr<Transfers> links_;
  Pool<ChannelState> channels_;
  Pool<Item> items_;
  std::vector<Path> paths_;
  std::unordered_map<std::uint64_t, std::uint32_t> known_paths_;  // by both NICs
  std::vector<std::uint32_t> channel_of_;                         // by flow
  std::vector<Delivery> delivered_;
};

}  // namespace accord::sim
