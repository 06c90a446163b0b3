#pragma once
// What an ExpertHandle refers to.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "expert/device/device_map.hpp"
#include "expert/routing.hpp"

namespace accord::expert {

/// A map and whose it is.
class Handle {
 public:
  std::uint64_t group = 0;       ///< the one that made it, by a number that no other group of the process has
  std::uint32_t number = 0;      ///< among the handles of its group, equal on all ranks
  std::uint32_t prepares = 0;    ///< how often it was prepared
  std::uint32_t generation = 0;  ///< how often it became another map; on GPUs, which alone know that, `prepares`
  bool prepared = false;
  Rank rank = 0;
  ExpertLayerConfig layer;
  std::shared_ptr<const Placement> placement;
  Routing routing;
  std::vector<std::int64_t> traffic;  ///< [ranks, ranks]: rows from each rank to each
  std::vector<std::int64_t> loads;    ///< [experts]: choices, before any was dropped
  std::uint64_t fingerprint = 0;      ///< of the map, see fingerprint.hpp
  std::shared_ptr<DeviceMap> device;  ///< of groups on GPUs: the map, which `routing` is a copy of once it is fetched
  std::string group_name;

  std::int64_t tokens() const { return device != nullptr ? device->tokens : routing.tokens_of(rank); }
  std::int64_t traffic_from_to(Rank from, Rank to) const { return traffic[from * placement->ranks() + to]; }
  std::int64_t recv_rows() const { return routing.ranks[rank].recv_rows; }
  int first_place() const { return placement->first_place[rank]; }
  int last_place() const { return placement->first_place[rank + 1]; }
  Rank holder(std::int64_t choice) const { return placement->holder[routing.place[choice]]; }

  /// Memory for the largest map.
  void reserve(const ExpertGroupConfig& config);
  /// traffic, loads and fingerprint, from routing.
  void add_up();
  /// On GPUs: waits for what is in `stream`, and copies the map. kResourceExhausted: it overflows, and that is a failure.
  Status fetch(Stream stream);
  /// The same of the stream that it was prepared in, unless that is done.
  void fetch_once() {
    if (device != nullptr && !device->is_fetched) (void)fetch(device->stream);
  }
};

}  // namespace accord::expert
