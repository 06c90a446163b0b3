#pragma once
// Collects a text from every rank of a group with one of its collectives.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// Returns the texts of all ranks, each without zeros and of at most kMaxText bytes. A collective of `group`.
Result<std::vector<std::string>> gather_texts(Group& group, const std::string& mine, Duration timeout);

/// Returns ok if all ranks are ok. Otherwise returns this rank's error, or if it has none that of the first rank with
/// one, as kUnsupported. A collective of `group`.
Status all_ok(Group& group, const Status& mine, Deadline deadline);

}  // namespace accord::comm
