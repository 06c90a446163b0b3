#include "sim/messages.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "sim/flows.hpp"
#include "sim/queues.hpp"

namespace accord::sim {
namespace {

std::unique_ptr<Transfers> make_links(const Network* network, Sharing sharing) {
  std::vector<double> capacities;
  if (network != nullptr)
    for (const Link& link : network->links()) capacities.push_back(link.bytes_per_second);
  if (sharing == Sharing::kQueues) return std::make_unique<Queues>(std::move(capacities));
  return std::make_unique<Flows>(std::move(capacities));
}

}  // namespace

Messages::Messages(const topology::Topology& topology, const Network* network, int nics, int period, Sharing sharing,
                   Journal* journal)
    : topology_(topology),
      network_(network),
      nics_(nics),
      period_(period),
      journal_(journal),
      links_(make_links(network, sharing)) {}

std::uint32_t Messages::open(Rank from, Rank to) { return channels_.add({.path = path_between(from, to)}); }

void Messages::close(std::uint32_t channel) {
  channels_[channel].is_closed = true;
  if (channels_[channel].first == kNone) channels_.remove(channel);
}

void Messages::send(double now, std::uint32_t channel, const Message& message) {
  const std::uint32_t id = items_.add({message, kNone});
  ChannelState& state = channels_[channel];
  if (state.first == kNone) {
    state.first = state.last = id;
    start_next(now, channel);
  } else {
    state.last = items_[state.last].next = id;
  }
}

void Messages::advance(double now) {
  const std::optional<FlowId> flow = links_->advance();
  if (!flow) return;
  const std::uint32_t channel = channel_of_[*flow];
  ChannelState& state = channels_[channel];
  const Message& message = items_[state.first].message;
  if (journal_ != nullptr) journal_->transfers.push_back({state.begun, now, message.bytes, state.path});
  deliver(state, now + message.sent - message.begin);
  start_next(now, channel);
  if (state.is_closed && state.first == kNone) channels_.remove(channel);
}

// Delivers the events before the next data, and starts these. Data flow from the beginning of the sender's part, and
// arrive later by the length of that part, which is the same as if they followed it.
void Messages::start_next(double now, std::uint32_t channel) {
  ChannelState& state = channels_[channel];
  while (state.first != kNone && items_[state.first].message.bytes == 0)
    deliver(state, items_[state.first].message.sent);
  if (state.first == kNone) return;
  const FlowId flow = links_->start(now, items_[state.first].message.bytes, paths_[state.path].route);
  if (flow >= channel_of_.size()) channel_of_.resize(flow + 1);
  channel_of_[flow] = channel;
  state.begun = now;
}

// `sent`: when the first item has left the sender.
void Messages::deliver(ChannelState& channel, double sent) {
  const std::uint32_t id = channel.first;
  const Message& message = items_[id].message;
  channel.arrived = std::max(channel.arrived, sent + paths_[channel.path].latency);
  if (message.event.event != kNone) delivered_.push_back({message.event, channel.arrived});
  channel.first = items_[id].next;
  items_.remove(id);
}

std::uint32_t Messages::path_between(Rank from, Rank to) {
  const auto nic_of = [&](Rank rank) {
    const std::vector<Rank>& all = topology_.ranks_of_host(topology_.host_of(rank));
    const auto place = static_cast<int>(std::lower_bound(all.begin(), all.end(), rank) - all.begin());
    return place * nics_ / static_cast<int>(all.size());
  };
  const int first = topology_.host_of(from), first_nic = nic_of(from), last = topology_.host_of(to),
            last_nic = nic_of(to);
  const std::uint64_t key = (static_cast<std::uint64_t>(first * nics_ + first_nic) << 32) |
                            static_cast<std::uint32_t>(last * nics_ + last_nic);
  const auto [known, is_new] = known_paths_.try_emplace(key, static_cast<std::uint32_t>(paths_.size()));
  if (is_new) {
    Route route = network_->route(first, first_nic, last, last_nic);
    for (LinkId& link : route.links) link = network_->representative(link, period_);
    paths_.push_back({links_->add_route(route.links), route.latency});
    if (journal_ != nullptr) journal_->routes.push_back(route.links);
  }
  return known->second;
}

}  // namespace accord::sim
