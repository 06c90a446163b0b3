#pragma once
// Receiving from whichever rank sends.

#include "accord/buffer.hpp"
#include "accord/call_options.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// As Communicator::recv_any() says.
Result<Rank> receive_any(Group& group, Buffer buffer, std::int32_t tag, const CallOptions& options);

}  // namespace accord::comm
