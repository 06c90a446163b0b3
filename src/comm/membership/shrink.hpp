#pragma once
// Creates a group from the ranks that survive a failure.

#include <memory>
#include <string>

#include "comm/group.hpp"

namespace accord::comm {

/// The ranks of `group` that call this form a group, `name`, in the order of their ranks, with the options of the old
/// one. Ranks that have died or closed are left out at once; ranks that are alive and have not called within
/// `timeout` are left out then. All callers get groups with the same members. A rank that the others have left out
/// gets kAborted. A group can be shrunk once.
Result<std::shared_ptr<Group>> shrink(Group& group, std::string name, Duration timeout);

}  // namespace accord::comm
