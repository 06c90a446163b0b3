// The host obtains a map by recomputing it from the data that the ranks exchanged. The kernels must therefore give
// the same result as routing.cpp.
#include "expert/device/device_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/rounding.hpp"
#include "expert/config.hpp"

namespace accord::expert {
namespace {

static_assert(sizeof(RankCounts) == sizeof(ExpertRankCounts));
static_assert(kMaxExperts <= 1 << kMaxWaiting);

Dropping dropping_of(const ExpertGroupConfig& config) {
  switch (config.overflow) {
    case OverflowPolicy::kDropByWeight: return Dropping::kByWeight;
    case OverflowPolicy::kDropBySlot: return Dropping::kBySlot;
    case OverflowPolicy::kFail: break;
  }
  return Dropping::kNone;
}

/// Divides memory into arrays. Without memory it only adds up the bytes they need.
class Divider {
 public:
  explicit Divider(std::byte* memory) : memory_(memory) {}
  template <typename T>
  void allocate(T*& array, std::size_t count) {
    array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += round_up(count * sizeof(T), std::size_t{256});
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* const memory_;
  std::size_t used_ = 0;
};

/// Bits of a key that a pass finds: 8 unless there are so many places that their bins would need more than 2 MiB.
int bin_bits(int places) {
  constexpr int kMaxBits = 8, kAllBits = 18;
  return std::clamp(kAllBits - static_cast<int>(std::bit_width(static_cast<unsigned>(places))), 1, kMaxBits);
}

/// Divides memory into the arrays of a map. Returns the bytes they use.
std::size_t divide(Map& map, RowPath path, std::byte* memory) {
  Divider divider(memory);
  const std::size_t ranks = to_size(map.ranks), own = to_size(map.of_rank()), choices = to_size(map.choices()),
                    places = to_size(map.places);
  for (std::int32_t** const array : {&map.expert, &map.place, &map.slot}) divider.allocate(*array, choices);
  divider.allocate(map.chunk_rows, (to_size(map.chunks()) + 1) * places);
  for (std::int64_t** const array : {&map.rows, &map.counts, &map.offsets}) divider.allocate(*array, places);
  if (map.dropping == Dropping::kByWeight) {
    divider.allocate(map.weight, choices);
    divider.allocate(map.bins, places << map.bin_bits);
    for (std::uint64_t** const array : {&map.low, &map.above, &map.kept}) divider.allocate(*array, places);
    divider.allocate(map.threshold, ranks);
  }
  divider.allocate(map.sources, to_size(map.max_rows));
  for (std::int32_t** const array : {&map.order, &map.merges, &map.sends}) divider.allocate(*array, own);
  divider.allocate(map.send_first, places + 1);
  if (path == RowPath::kCollectives) {
    divider.allocate(map.sent_at, own);
    divider.allocate(map.arrives_at, ranks * places);
    divider.allocate(map.traffic, 2 * ranks);
  }
  divider.allocate(map.counted, ranks);
  divider.allocate(map.numbers, 1);
  return divider.used();
}

std::size_t divide_tables(Map& map, const Placement& placement, std::byte* memory) {
  Divider divider(memory);
  divider.allocate(map.first_place, placement.first_place.size());
  divider.allocate(map.holder, placement.holder.size());
  divider.allocate(map.first_replica, placement.first_replica.size());
  divider.allocate(map.replicas, placement.replicas.size());
  return divider.used();
}

}  // namespace

Result<std::shared_ptr<DevicePlacement>> DevicePlacement::create(device::Runtime& runtime, Device device, Stream stream,
                                                                 const Placement& placement) {
  Map tables;
  ACCORD_ASSIGN_OR_RETURN(
      CallMemory memory,
      CallMemory::allocate(runtime, device, divide_tables(tables, placement, nullptr), "the placement of experts"));
  (void)divide_tables(tables, placement, memory.data());
  const auto upload = [&](const std::int32_t* to, const std::vector<int>& from) {
    return runtime.copy(const_cast<std::int32_t*>(to), from.data(), from.size() * sizeof(int), device, stream);
  };
  ACCORD_RETURN_IF_ERROR(upload(tables.first_place, placement.first_place));
  ACCORD_RETURN_IF_ERROR(upload(tables.holder, placement.holder));
  ACCORD_RETURN_IF_ERROR(upload(tables.first_replica, placement.first_replica));
  ACCORD_RETURN_IF_ERROR(upload(tables.replicas, placement.replicas));
  ACCORD_RETURN_IF_ERROR(runtime.synchronize(device, stream));
  std::shared_ptr<DevicePlacement> created(new DevicePlacement(std::move(memory)));
  created->tables_ = tables;
  return created;
}

void DevicePlacement::fill_in(Map& map) const {
  map.first_place = tables_.first_place;
  map.holder = tables_.holder;
  map.first_replica = tables_.first_replica;
  map.replicas = tables_.replicas;
}

Result<std::unique_ptr<DeviceMap>> DeviceMap::create(device::Runtime& runtime, const GroupSetup& setup,
                                                     const ExpertLayerConfig& layer, RowPath path,
                                                     std::shared_ptr<DevicePlacement> tables) {
  const ExpertGroupConfig& config = setup.config;
  const Placement& placement = *setup.placement;
  const Rank rank = setup.rank();
  const auto local = static_cast<int>(placement.experts_of(rank).size());
  Map map{.ranks = placement.ranks(),
          .rank = rank,
          .experts = placement.experts,
          .places = placement.places(),
          .top_k = layer.top_k,
          .alignment = layer.alignment,
          .max_tokens = config.max_tokens_per_rank,
          .dropping = dropping_of(config),
          .bin_bits = bin_bits(placement.places()),
          .capacity = config.max_recv_rows};
  map.max_rows = std::int64_t{map.ranks} * map.max_tokens * std::min(layer.top_k, local) +
                 std::int64_t{local} * (layer.alignment - 1);
  if (map.capacity > 0) map.max_rows = std::min(map.max_rows, map.capacity);
  ACCORD_ASSIGN_OR_RETURN(CallMemory memory, CallMemory::allocate(runtime, config.device, divide(map, path, nullptr),
                                                                  "the map of an expert handle"));
  (void)divide(map, path, memory.data());
  tables->fill_in(map);
  std::unique_ptr<DeviceMap> created(new DeviceMap(runtime, config.device, std::move(memory), std::move(tables)));
  if (path == RowPath::kCollectives) {
    ACCORD_ASSIGN_OR_RETURN(created->traffic_,
                            HostNumbers::create(runtime, config.device, 2 * to_size(placement.ranks())));
  }
  created->map_ = map;
  created->first_place_ = placement.first_place[rank];
  created->last_place_ = placement.first_place[rank + 1];
  return created;
}

ConstBuffer DeviceMap::counts() const {
  return {map_.counts + first_place_, to_size(last_place_ - first_place_), DType::kInt64, device_};
}

ConstBuffer DeviceMap::numbers() const {
  return {map_.numbers, offsetof(MapNumbers, fingerprint) / sizeof(std::int64_t), DType::kInt64, device_};
}

ConstBuffer DeviceMap::fingerprint() const { return {&map_.numbers->fingerprint, 1, DType::kInt64, device_}; }

Status DeviceMap::copy_to(Routing& routing, const Placement& placement, Stream from) {
  std::vector<RankCounts> counted(to_size(map_.ranks));
  std::vector<std::int32_t> expert(to_size(std::int64_t{map_.ranks} * map_.max_tokens * map_.top_k));
  std::vector<float> weight(map_.weight == nullptr ? 0 : expert.size());
  const auto download = [&](void* to, const void* at, std::size_t bytes) {
    return runtime_.copy(to, at, bytes, device_, from);
  };
  MapNumbers numbers = {};
  ACCORD_RETURN_IF_ERROR(download(&numbers, map_.numbers, sizeof(numbers)));
  ACCORD_RETURN_IF_ERROR(download(counted.data(), map_.counted, counted.size() * sizeof(RankCounts)));
  ACCORD_RETURN_IF_ERROR(download(expert.data(), map_.expert, expert.size() * sizeof(std::int32_t)));
  ACCORD_RETURN_IF_ERROR(download(weight.data(), map_.weight, weight.size() * sizeof(float)));
  ACCORD_RETURN_IF_ERROR(runtime_.synchronize(device_, from));
  if (numbers.recv_rows < 0) return {StatusCode::kAborted, "the map was not built: its group has failed or was closed"};

  const std::size_t of_rank = to_size(map_.max_tokens) * to_size(map_.top_k);
  std::vector<double> weights(weight.size());
  for (Rank rank = 0; rank < map_.ranks; ++rank) {
    const RankCounts& counts = counted[to_size(rank)];
    if (counts.tokens < 0 || counts.tokens > map_.max_tokens)
      return {StatusCode::kInternal,
              fmt::format("rank {} reported {} tokens, expected 0 to {}", rank, counts.tokens, map_.max_tokens),
              {rank}};
    routing.first_token[to_size(rank) + 1] = routing.first_token[to_size(rank)] + counts.tokens;
    routing.ranks[to_size(rank)].out_of_range = counts.out_of_range;
    routing.ranks[to_size(rank)].duplicates = counts.duplicates;
    const std::size_t to = to_size(routing.choice(rank, 0, 0)), count = to_size(counts.tokens) * to_size(map_.top_k);
    std::copy_n(expert.begin() + static_cast<std::ptrdiff_t>(to_size(rank) * of_rank), count,
                routing.expert.begin() + static_cast<std::ptrdiff_t>(to));
    if (!weights.empty())
      std::copy_n(weight.begin() + static_cast<std::ptrdiff_t>(to_size(rank) * of_rank), count,
                  weights.begin() + static_cast<std::ptrdiff_t>(to));
  }
  route(routing, placement);
  if (!routing.overflows) return {};
  if (map_.dropping == Dropping::kBySlot) drop_by_slot(routing, placement);
  if (map_.dropping == Dropping::kByWeight) drop_by_weight(routing, placement, weights);
  return {};
}

}  // namespace accord::expert
