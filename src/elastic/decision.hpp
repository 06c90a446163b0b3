#pragma once
// Which processes form the next group, and which of them says so. Pure.

#include <cstdint>
#include <functional>
#include <vector>

#include "elastic/life_line.hpp"
#include "elastic/records.hpp"

namespace accord::elastic {

/// How a process appears in the store.
enum class Presence : std::uint8_t {
  kAbsent,   ///< it has left or written nothing yet, or it cannot be used
  kWorking,  ///< it has not asked for the next round
  kWaiting   ///< it waits for the next round
};

struct Situation {
  const Round& latest;
  std::int64_t me = 0;   ///< id; it waits
  std::int64_t ids = 0;  ///< that have been given
  int min_ranks = 1;
  int max_ranks = 1;
  bool last_call_is_over = false;  ///< the first round need not wait for more than min_ranks
  bool patience_is_over = false;   ///< ranks of the latest round that do not come need not be waited for
  /// Both may be slow, and are asked only where the answer matters.
  std::function<Presence(std::int64_t id)> presence;
  std::function<Life(std::int64_t id)> life;
};

struct Decision {
  enum class Kind : std::uint8_t {
    kFollow,        ///< `leader` decides
    kAwaitWorkers,  ///< ranks of the latest round live and do not wait
    kAwaitRanks,    ///< there are fewer than needed
    kPublish        ///< `members` form the next group, in this order
  };
  Kind kind = Kind::kAwaitRanks;
  std::int64_t leader = 0;
  std::vector<std::int64_t> members;
  std::vector<std::int64_t> others;  ///< further processes that may live
};

/// The leader is the first process that waits, of the ranks of the latest round in their order, then of all others in
/// the order of their ids. Only ranks of the latest round ever go on without another one of them that lives: a process
/// that was not in it cannot know whether they work.
Decision decide(const Situation& situation);

/// Returns true if a process that the latest round lacks waits and has a place in the next one.
bool has_place_for_more(const Situation& situation);

}  // namespace accord::elastic
