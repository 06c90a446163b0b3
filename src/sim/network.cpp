// The links of NICs come first, two for each NIC: out and in. Then those of leaves, two for each: up to the spines and
// down. A dragonfly has one link from each group to each other one instead; a torus two from each host in each
// dimension, to its next and its previous neighbour.
#include "sim/network.hpp"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <utility>

#include "base/rounding.hpp"

namespace accord::sim {

int symmetric_hosts(const NetworkModel& model, int hosts) {
  switch (model.shape) {
    case NetworkShape::kCrossbar: return 1;
    case NetworkShape::kFatTree:
    case NetworkShape::kRailOptimized:
    case NetworkShape::kDragonfly: return hosts % model.hosts_per_switch == 0 ? model.hosts_per_switch : hosts;
    case NetworkShape::kTorus: {
      const int all = std::accumulate(model.torus.begin(), model.torus.end(), 1, std::multiplies<>());
      return hosts == all ? hosts / model.torus.back() : hosts;
    }
  }
  return hosts;
}

Network::Network(const NetworkModel& model, int hosts) : model_(model), hosts_(hosts) {
  for (int host = 0; host < hosts; ++host) {
    for (int nic = 0; nic < model.nics; ++nic) {
      add(fmt::format("host {}, NIC {}, out", host, nic), model.nic_bytes_per_second);
      add(fmt::format("host {}, NIC {}, in", host, nic), model.nic_bytes_per_second);
    }
  }
  first_inner_ = static_cast<LinkId>(links_.size());
  if (model.hosts_per_switch > 0) leaves_ = quotient_up(hosts, model.hosts_per_switch);
  switch (model.shape) {
    case NetworkShape::kCrossbar: break;
    case NetworkShape::kFatTree: add_leaves(leaves_, "leaf"); break;
    case NetworkShape::kRailOptimized: add_leaves(leaves_ * model.nics, "leaf of a rail"); break;
    case NetworkShape::kDragonfly:
      for (int from = 0; from < leaves_; ++from)
        for (int to = 0; to < leaves_; ++to)
          add(fmt::format("group {} to group {}", from, to), model.global_bytes_per_second);
      break;
    case NetworkShape::kTorus: add_torus(); break;
  }
}

LinkId Network::add(std::string name, double bytes_per_second) {
  links_.push_back({std::move(name), bytes_per_second});
  return static_cast<LinkId>(links_.size() - 1);
}

void Network::add_leaves(int leaves, const char* name) {
  const int nics = model_.shape == NetworkShape::kFatTree ? model_.nics : 1;
  const double upwards = model_.hosts_per_switch * nics * model_.nic_bytes_per_second / model_.oversubscription;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    add(fmt::format("{} {}, up", name, leaf), upwards);
    add(fmt::format("{} {}, down", name, leaf), upwards);
  }
}

void Network::add_torus() {
  for (int host = 0; host < hosts_; ++host) {
    for (std::size_t dimension = 0; dimension < model_.torus.size(); ++dimension) {
      add(fmt::format("host {}, dimension {}, next", host, dimension), model_.nic_bytes_per_second);
      add(fmt::format("host {}, dimension {}, previous", host, dimension), model_.nic_bytes_per_second);
    }
  }
}

int Network::leaf_of(int host, int nic) const {
  const int leaf = host / model_.hosts_per_switch;
  return model_.shape == NetworkShape::kRailOptimized ? nic * leaves_ + leaf : leaf;
}

Route Network::route(int from, int from_nic, int to, int to_nic) const {
  if (is_torus()) return torus_route(from, from_nic, to, to_nic);
  Route route{{nic_out(from, from_nic)}, model_.latency_seconds};
  if (model_.shape != NetworkShape::kCrossbar) {
    const int first = leaf_of(from, from_nic), last = leaf_of(to, to_nic);
    if (first != last && model_.shape == NetworkShape::kDragonfly) {
      route.links.push_back(first_inner_ + first * leaves_ + last);
      route.latency += model_.switch_seconds;
    } else if (first != last) {
      route.links.insert(route.links.end(), {up(first), down(last)});
      route.latency += 2 * model_.switch_seconds;
    }
  }
  route.links.push_back(nic_in(to, to_nic));
  return route;
}

LinkId Network::representative(LinkId link, int period) const {
  if (link < first_inner_) return link % (2 * model_.nics * period);
  const LinkId inner = link - first_inner_;
  if (is_torus()) return first_inner_ + inner % (2 * static_cast<LinkId>(model_.torus.size()) * period);
  const int leaves = quotient_up(period, model_.hosts_per_switch);
  if (model_.shape == NetworkShape::kDragonfly) {
    const int from = inner / leaves_, to = inner % leaves_;
    const int shift = from - from % leaves;
    return first_inner_ + (from - shift) * leaves_ + (to - shift + leaves_) % leaves_;
  }
  const int leaf = inner / 2, rail = leaf / leaves_;
  return first_inner_ + 2 * (rail * leaves_ + leaf % leaves_ % leaves) + inner % 2;
}

// Dimension by dimension, the shorter way round. A torus that is not full of hosts has routes through places without.
Route Network::torus_route(int from, int from_nic, int to, int to_nic) const {
  Route route{{nic_out(from, from_nic)}, model_.latency_seconds};
  const auto dimensions = static_cast<int>(model_.torus.size());
  int at = from, stride = 1;
  for (int dimension = 0; dimension < dimensions; ++dimension) {
    const int size = model_.torus[static_cast<std::size_t>(dimension)];
    int here = at / stride % size;
    const int there = to / stride % size;
    const int ahead = (there - here + size) % size;
    const bool forward = 2 * ahead <= size;
    while (here != there) {
      if (at < hosts_) route.links.push_back(first_inner_ + 2 * (at * dimensions + dimension) + (forward ? 0 : 1));
      route.latency += model_.switch_seconds;
      const int next = (here + (forward ? 1 : size - 1)) % size;
      at += (next - here) * stride;
      here = next;
    }
    stride *= size;
  }
  route.links.push_back(nic_in(to, to_nic));
  return route;
}

}  // namespace accord::sim
