#pragma once
// The state behind an ExpertHandle.

#include <cstdint>
#include <memory>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "expert/group_setup.hpp"
#include "expert/routing.hpp"

namespace accord::expert {

/// A routing map and its owner. A map that is computed on a device is a DeviceHandle (device/device_handle.hpp), whose
/// `routing` is a copy of the map once it is fetched.
class Handle {
 public:
  /// Allocates memory for the largest map.
  Handle(const ExpertLayerConfig& of_layer, const GroupSetup& setup);
  virtual ~Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::uint64_t group = 0;       ///< id of the group that made it, unique in the process
  std::uint32_t number = 0;      ///< among the handles of its group, equal on all ranks
  std::uint32_t prepares = 0;    ///< times it was prepared
  std::uint32_t generation = 0;  ///< times the map changed; on GPUs, where only the device knows that, `prepares`
  bool prepared = false;
  const ExpertLayerConfig layer;
  const std::shared_ptr<const Placement> placement;
  const Rank rank;
  Routing routing;
  std::vector<std::int64_t> traffic;  ///< [ranks, ranks]: rows from each rank to each rank
  std::vector<std::int64_t> loads;    ///< [experts]: choices, before any were dropped
  std::uint64_t fingerprint = 0;      ///< of the map, see fingerprint.hpp

  std::int64_t traffic_from_to(Rank from, Rank to) const { return traffic[from * placement->ranks() + to]; }
  std::int64_t recv_rows() const { return routing.ranks[rank].recv_rows; }
  int first_place() const { return placement->first_place[rank]; }
  int last_place() const { return placement->first_place[rank + 1]; }
  Rank holder(std::int64_t choice) const { return placement->holder[routing.place[choice]]; }
  /// Computes traffic, loads and fingerprint from routing.
  void add_up();

  /// Tokens of this rank.
  virtual std::int64_t tokens() const { return routing.tokens_of(rank); }
  /// Rows that a buffer of slots must have at least. On GPUs the host does not know the number of rows, and kernels
  /// check how many fit.
  virtual std::int64_t min_slots() const { return recv_rows(); }
  /// False if the handle is not prepared, and on GPUs also if fetch() found that its map is not valid.
  virtual bool has_map() const { return prepared; }
  /// On GPUs: waits for the work in `stream`, and copies the map. Fails with kResourceExhausted if the map overflows
  /// and the policy is kFail.
  virtual Status fetch(Stream /*stream*/) { return {}; }
  /// Fetches in the stream in which the map was prepared, unless that is already done.
  virtual void fetch_once() {}
  /// Has no buffers on the CPU.
  virtual ExpertDeviceMap on_device() const { return {}; }
};

}  // namespace accord::expert
