#include "elastic/decision.hpp"

#include <algorithm>
#include <cstddef>

namespace accord::elastic {
namespace {

/// All processes but the ranks of the latest round, in the order of their ids.
std::vector<std::int64_t> newcomers(const Situation& situation) {
  std::vector<std::int64_t> ids = situation.latest.others;
  for (std::int64_t id = situation.latest.ids + 1; id <= situation.ids; ++id) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  return ids;
}

bool is_gone(const Situation& situation, std::int64_t id) { return situation.life(id) == Life::kGone; }

/// A process that was not in the latest round waits. It must have answered, because a group with a process that
/// cannot be reached would be formed in vain.
bool waits_as_newcomer(const Situation& situation, std::int64_t id) {
  return id == situation.me || (situation.presence(id) == Presence::kWaiting && situation.life(id) == Life::kAlive);
}

bool waits_as_rank(const Situation& situation, std::int64_t id) {
  return id == situation.me || (situation.presence(id) == Presence::kWaiting && !is_gone(situation, id));
}

}  // namespace

Decision decide(const Situation& situation) {
  const std::vector<std::int64_t>& ranks = situation.latest.members;
  const std::vector<std::int64_t> new_ones = newcomers(situation);
  const bool was_in_latest = std::find(ranks.begin(), ranks.end(), situation.me) != ranks.end();

  Decision decision;
  for (const std::int64_t id : ranks)
    if (decision.leader == 0 && waits_as_rank(situation, id)) decision.leader = id;
  for (const std::int64_t id : new_ones)
    if (decision.leader == 0 && waits_as_newcomer(situation, id)) decision.leader = id;
  if (decision.leader != situation.me) {
    decision.kind = Decision::Kind::kFollow;
    return decision;
  }

  bool others_work = false;
  for (const std::int64_t id : ranks) {
    const Presence presence = id == situation.me ? Presence::kWaiting : situation.presence(id);
    if (presence == Presence::kWaiting) {
      decision.members.push_back(id);
    } else if (!is_gone(situation, id)) {
      others_work = others_work || presence == Presence::kWorking;
      decision.others.push_back(id);
    }
  }
  if (others_work && !(was_in_latest && situation.patience_is_over)) {
    decision.kind = Decision::Kind::kAwaitWorkers;
    return decision;
  }
  for (const std::int64_t id : new_ones) {
    const bool has_place = decision.members.size() < static_cast<std::size_t>(situation.max_ranks);
    if (has_place && waits_as_newcomer(situation, id)) {
      decision.members.push_back(id);
    } else if (!is_gone(situation, id)) {
      decision.others.push_back(id);
    }
  }
  const auto count = static_cast<int>(decision.members.size());
  const bool is_first = situation.latest.number == 0;
  const bool may_grow = is_first && count < situation.max_ranks && !situation.last_call_is_over;
  decision.kind = count < situation.min_ranks || may_grow ? Decision::Kind::kAwaitRanks : Decision::Kind::kPublish;
  return decision;
}

bool has_place_for_more(const Situation& situation) {
  const std::vector<std::int64_t> new_ones = newcomers(situation);
  return situation.latest.members.size() < static_cast<std::size_t>(situation.max_ranks) &&
         std::any_of(new_ones.begin(), new_ones.end(),
                     [&](std::int64_t id) { return waits_as_newcomer(situation, id); });
}

}  // namespace accord::elastic
