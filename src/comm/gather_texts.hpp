#pragma once
// What all ranks of a group say, by a collective of it.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// The texts of all ranks, each without zeros and of at most kMostText bytes. A collective of `group`.
Result<std::vector<std::string>> gather_texts(Group& group, const std::string& mine, Duration timeout);

}  // namespace accord::comm
