#pragma once
// What all ranks of a group say, by a collective of it.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// The texts of all ranks, each without zeros and of at most kMostText bytes. A collective of `group`.
Result<std::vector<std::string>> gather_texts(Group& group, const std::string& mine, Duration timeout);

/// Ok if all ranks are; else the error of this rank, or as kUnsupported that of the first one that has one. A collective of `group`.
Status all_ok(Group& group, const Status& mine, Deadline deadline);

}  // namespace accord::comm
