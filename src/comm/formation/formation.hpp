#pragma once
// Forms a group of ranks that know each other by handles alone.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "accord/communicator.hpp"

namespace accord::comm {

/// The rank behind `group` and the others that call this with the same uuid and handles form a group with the name and
/// the options of `group`, which may have failed and is left as it is. Cost: one TCP connection from each rank to rank
/// 0, and three rounds of messages over them.
Result<std::shared_ptr<Group>> reconfigure(Group& group, std::string_view uuid, std::span<const std::string> handles,
                                           const ReconfigureOptions& options);

}  // namespace accord::comm
