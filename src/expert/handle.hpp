#pragma once
// The state behind an ExpertHandle.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "expert/device/device_map.hpp"
#include "expert/routing.hpp"

namespace accord::expert {

/// A routing map and its owner.
class Handle {
 public:
  std::uint64_t group = 0;       ///< id of the group that made it, unique in the process
  std::uint32_t number = 0;      ///< among the handles of its group, equal on all ranks
  std::uint32_t prepares = 0;    ///< times it was prepared
  std::uint32_t generation = 0;  ///< times the map changed; on GPUs, where only the device knows that, `prepares`
  bool prepared = false;
  Rank rank = 0;
  ExpertLayerConfig layer;
  std::shared_ptr<const Placement> placement;
  Routing routing;
  std::vector<std::int64_t> traffic;  ///< [ranks, ranks]: rows from each rank to each rank
  std::vector<std::int64_t> loads;    ///< [experts]: choices, before any were dropped
  std::uint64_t fingerprint = 0;      ///< of the map, see fingerprint.hpp
  std::shared_ptr<DeviceMap> device;  ///< GPU groups: the map; `routing` is a copy of it once fetched
  std::string group_name;

  std::int64_t tokens() const { return device != nullptr ? device->tokens : routing.tokens_of(rank); }
  std::int64_t traffic_from_to(Rank from, Rank to) const { return traffic[from * placement->ranks() + to]; }
  std::int64_t recv_rows() const { return routing.ranks[rank].recv_rows; }
  int first_place() const { return placement->first_place[rank]; }
  int last_place() const { return placement->first_place[rank + 1]; }
  Rank holder(std::int64_t choice) const { return placement->holder[routing.place[choice]]; }

  /// Allocates memory for the largest map.
  void reserve(const ExpertGroupConfig& config);
  /// Computes traffic, loads and fingerprint from routing.
  void add_up();
  /// On GPUs: waits for the work in `stream`, and copies the map. Fails with kResourceExhausted if the map overflows
  /// and the policy is kFail.
  Status fetch(Stream stream);
  /// Fetches in the stream in which the map was prepared, unless that is already done.
  void fetch_once() {
    if (device != nullptr && !device->is_fetched) (void)fetch(device->stream);
  }
};

}  // namespace accord::expert
