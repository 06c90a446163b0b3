#pragma once
// What is left of a group after a failure becomes a group again.

#include <memory>
#include <string>

#include "comm/group.hpp"

namespace accord::comm {

/// The ranks of `group` that call this make a group of their own, `name`, in the order of their ranks, with the options of the
/// old one. Whoever has died or closed is left out at once; whoever is alive and has not called after `patience`, then.
/// All of them get groups of the same members. One that the others have left out gets kAborted; a group is shrunk once.
Result<std::shared_ptr<Group>> shrink(Group& group, std::string name, Duration patience);

}  // namespace accord::comm
