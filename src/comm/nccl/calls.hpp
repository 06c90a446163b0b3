#pragma once
// Translates calls of a communicator to calls of NCCL.

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "comm/nccl/connection.hpp"

namespace accord::comm::nccl {

/// Fails with kUnsupported if NCCL of that version has no such reduction between `size` ranks.
Status check_reduction(const Call& call, int version, int size);

/// One rank's place in an NCCL communicator.
struct Member {
  Use& use;
  Rank rank = 0;
  int size = 1;
};

/// Puts a collective into `stream`. `from`: the memory that it reads, which may differ from call.input's. Follow it by
/// Use::settle(). REQUIRES: check_call() and check_reduction() are ok.
Status put_collective(const Member& member, const Call& call, const void* from, Stream stream);
/// Puts a message into `stream`, between ncclGroupStart and ncclGroupEnd. `peer`: its rank in the member's
/// communicator.
Status put_message(const Member& member, const Call& call, Rank peer, Stream stream);

}  // namespace accord::comm::nccl
