#pragma once
// The kernel of prepare(), where all ranks reach each other's memory.

#include "expert/device/build_map.hpp"
#include "expert/device/peers.hpp"

namespace accord::expert {

/// The choices of this rank's tokens, as the caller gives them.
struct RoutingInput {
  const void* ids = nullptr;  ///< [tokens, top_k]
  bool wide = false;          ///< ids are int64, otherwise int32
  const float* weights = nullptr;
  std::int64_t tokens = 0;
  int top_k = 1, experts = 0;

  ACCORD_ON_DEVICE std::int64_t id_at(std::size_t i) const {
    return wide ? static_cast<const std::int64_t*>(ids)[i] : static_cast<const std::int32_t*>(ids)[i];
  }
  ACCORD_ON_DEVICE bool is_duplicate(std::size_t i, std::int64_t id) const {
    for (std::size_t j = i - i % static_cast<std::size_t>(top_k); j < i; ++j)
      if (id_at(j) == id) return true;
    return false;
  }
};

/// Checks the ids and calls put(i, expert) for each; -1 for no choice. Counts ids out of range and duplicates.
template <typename Block, typename Put>
ACCORD_ON_DEVICE void read_choices(Block& block, const RoutingInput& input, std::uint64_t* out_of_range,
                                   std::uint64_t* duplicates, Put put) {
  const auto end = static_cast<std::size_t>(input.tokens * input.top_k);
  for (std::size_t i = block.first(); i < end; i += block.stride()) {
    const std::int64_t id = input.id_at(i);
    std::int32_t expert = -1;
    if (id != -1 && (id < 0 || id >= input.experts))
      block.add(out_of_range, 1);
    else if (id != -1 && input.is_duplicate(i, id))
      block.add(duplicates, 1);
    else
      expert = static_cast<std::int32_t>(id);
    put(i, expert);
  }
}

/// The numbers of a map that is not built, which the kernels of a failed group leave that way.
ACCORD_ON_DEVICE inline MapNumbers no_numbers() { return {-1, -1, -1, -1, -1, ~std::uint64_t{0}}; }

/// Writes this rank's choices to all ranks, and builds the map once those of all ranks are here.
struct PrepareMap {
  static constexpr const char* kName = "expert_prepare_map";
  static constexpr int kThreads = kChunk;
  static constexpr std::size_t kShared = kChunk * sizeof(std::int32_t);
  Peers peers;
  Map map;
  RoutingInput input;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    if (block.first() == 0) *map.numbers = no_numbers();
    CallBlock call(block, peers.own, peers.stop);
    if (call.has_ended() || !await_previous_call(call, peers)) return;
    read_choices(block, input, &peers.own->out_of_range, &peers.own->duplicates,
                 [&](std::size_t i, std::int32_t expert) { share(i, expert); });
    if (call.is_last_at(&peers.own->shared)) announce(block);
    const std::uint64_t round = peers.round();
    if (!call.await(peers.size, round, [&](std::int64_t r) { return peers.mine<std::uint64_t>(peers.at.arrived) + r; }))
      return;
    if (!MapBuilder(block, call, map).build(routing())) return;
    leave(block, call, peers);
  }

 private:
  ACCORD_ON_DEVICE void share(std::size_t i, std::int32_t expert) const {
    const auto to = static_cast<std::size_t>(peers.rank * peers.at.choices) + i;
    for (int r = 0; r < peers.size; ++r) {
      peers.of<std::int32_t>(r, peers.at.ids)[to] = expert;
      if (input.weights != nullptr) peers.of<float>(r, peers.at.weights)[to] = input.weights[i];
    }
  }

  /// One block, once all have shared.
  template <typename Block>
  ACCORD_ON_DEVICE void announce(Block& block) const {
    const std::uint64_t round = peers.round(), out_of_range = block.load(&peers.own->out_of_range),
                        duplicates = block.load(&peers.own->duplicates);
    for (int r = block.thread(); r < peers.size; r += block.threads()) {
      std::uint64_t* const words = peers.of<std::uint64_t>(r, peers.at.routing) + kRoutingWords * peers.rank;
      words[0] = static_cast<std::uint64_t>(input.tokens);
      words[1] = out_of_range;
      words[2] = duplicates;
      block.store_release(peers.of<std::uint64_t>(r, peers.at.arrived) + peers.rank, round);
    }
    block.sync();
    if (block.thread() != 0) return;
    block.store(&peers.own->out_of_range, 0);
    block.store(&peers.own->duplicates, 0);
  }

  ACCORD_ON_DEVICE SharedRouting routing() const {
    const auto choices = static_cast<std::size_t>(peers.at.choices);
    return {.memory = peers.memory[peers.rank],
            .words = peers.at.routing,
            .words_stride = kRoutingWords * sizeof(std::uint64_t),
            .ids = peers.at.ids,
            .ids_stride = choices * sizeof(std::int32_t),
            .weights = peers.at.weights,
            .weights_stride = choices * sizeof(float)};
  }
};

}  // namespace accord::expert
