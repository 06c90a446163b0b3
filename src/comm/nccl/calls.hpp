#pragma once
// Calls of a communicator as NCCL's.

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "comm/nccl/abi.hpp"
#include "comm/nccl/library.hpp"

namespace accord::comm::nccl {

/// kUnsupported: NCCL of that version has no such reduction between `size` ranks.
Status check_reduction(const Call& call, int version, int size);

/// One rank's place in an NCCL communicator.
struct Member {
  const Library& library;
  Communicator* communicator = nullptr;
  Rank rank = 0;
  int size = 1;
};

/// Puts a collective into `stream`. `from`: what it reads, where that is not call.input's memory. The code of the function that gave one that is
/// neither kSuccess nor kInProgress is told as library.failure() does. REQUIRES: check_call() and check_reduction() are ok.
Status put_collective(const Member& member, const Call& call, const void* from, Stream stream);
/// A message, between ncclGroupStart and ncclGroupEnd. `peer`: in the member's communicator.
Status put_message(const Member& member, const Call& call, Rank peer, Stream stream);

}  // namespace accord::comm::nccl
