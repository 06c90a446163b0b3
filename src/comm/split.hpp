#pragma once
// Some ranks of a group make a group of their own.

#include <memory>
#include <span>

#include "comm/group.hpp"

namespace accord::comm {

/// All ranks of `parent` call it; those of one color get a group of theirs, ordered by (`key`, rank), null where the color is negative.
Result<std::shared_ptr<Group>> split_by_color(Group& parent, int color, int key, CommunicatorOptions given);

/// The listed ranks call it, in any order with other calls on `parent`, which stays out of it; null for an empty list.
Result<std::shared_ptr<Group>> split_by_ranks(Group& parent, std::span<const Rank> ranks, CommunicatorOptions given);

}  // namespace accord::comm
