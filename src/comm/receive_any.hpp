#pragma once
// Receives from any rank that sends.

#include "accord/buffer.hpp"
#include "accord/call_options.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// Implements Communicator::recv_any().
Result<Rank> receive_any(Group& group, Buffer buffer, std::int32_t tag, const CallOptions& options);

}  // namespace accord::comm
