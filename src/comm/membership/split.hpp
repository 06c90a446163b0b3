#pragma once
// Some ranks of a group form a group of their own.

#include <memory>
#include <span>

#include "comm/group.hpp"

namespace accord::comm {

/// All ranks of `parent` call it. Ranks of one color get a group, ordered by (`key`, rank); null if the color is
/// negative.
Result<std::shared_ptr<Group>> split_by_color(Group& parent, int color, int key, CommunicatorOptions given);

/// The listed ranks call it, in any order with other calls on `parent`, which does not take part. Null for an empty
/// list.
Result<std::shared_ptr<Group>> split_by_ranks(Group& parent, std::span<const Rank> ranks, CommunicatorOptions given);

}  // namespace accord::comm
