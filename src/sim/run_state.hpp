#pragma once
// The state of a plan that runs in virtual time (plan_run.cpp).

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/program.hpp"

namespace accord::sim::run_state {

inline constexpr std::uint32_t kNoLane = 0xffffffff;
inline constexpr std::uint64_t kNoRound = ~std::uint64_t{0};

struct LaneState {
  Rank rank = 0;
  const Lane* ops = nullptr;
  std::size_t next = 0;  // operation
  double time = 0;
  bool waited = false;  // for the event of the next operation
};
/// Rounds are counted over all calls.
struct RankState {
  std::uint32_t first_lane = 0;
  std::size_t lanes_left = 0;  // of the round
  std::uint64_t round = 0;
  double round_end = 0;
  double processor_free = 0;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> barriers;  // lanes that have arrived
};
struct Arrival {
  std::uint64_t round = kNoRound;
  double time = 0;
  std::uint32_t lane = kNoLane;  // which waits for it
  std::uint64_t lane_round = 0;
};
struct RoundState {
  std::uint64_t round = 0;
  std::size_t completed = 0;  // ranks
  double time = 0;            // of the last one
  std::vector<Rank> waiting;  // to begin the round that needs this one
};

}  // namespace accord::sim::run_state
