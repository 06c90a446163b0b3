#pragma once
// Lets new ranks join those of a running group.

#include <memory>

#include "accord/store.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// All ranks of `group` call it. They and `added` ranks that call join_growing() form a group, in which they keep
/// their ranks.
Result<std::shared_ptr<Group>> grow(Group& group, const std::shared_ptr<Store>& store, int added,
                                    CommunicatorOptions given);

/// Waits in `store` for a group that grows under that name, and joins it at the next free rank.
Result<std::shared_ptr<Group>> join_growing(const std::shared_ptr<Store>& store, CommunicatorOptions given);

}  // namespace accord::comm
