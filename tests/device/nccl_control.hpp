#pragma once
// What tests tell this library's NCCL, and ask of it. A rank is here the one that its communicator, or that from which it was split or
// shrunk, was initialised with; calls without a communicator have rank -1. Thread-safe.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/nccl_abi.hpp"

namespace accord::testing {

/// The path of this library, for dlopen.
std::string library_path();

/// What the rank called, in order, with what was told: "ncclCommInitRankConfig rank=1 nranks=4 blocking=0 maxCTAs=8 netName=Socket",
/// "ncclAllReduce rank=1 count=4 dtype=float32 op=sum", and at the end of one in a group " group". `rank=` is that of the call's own
/// communicator. ncclGroupEnd has a line for each rank that has something in the group. Calls that only ask are not there.
std::vector<std::string> log_of(int rank);
void clear_log();

/// What ncclGetVersion tells: major * 10000 + minor * 100 + patch.
void set_version(int version);

/// The next call of `symbol` by `rank`, or by any, does nothing and returns `result`; several queue up.
void fail_next(std::string_view symbol, nccl::ncclResult_t result, std::optional<int> rank = {});

/// The next such operation of that rank does not complete until its communicator is aborted. For ncclCommInitRank, -InitRankConfig, -Split,
/// -Shrink, -Revoke, -WindowRegister, -Finalize, -Destroy, collectives, ncclSend and ncclRecv.
void hang_next(std::string_view symbol, int rank);

/// Without them ncclCommWindowRegister succeeds and gives no window, as on a machine whose GPUs do not reach each other's memory.
void set_windows(bool are_there);

/// From now on ncclCommGetAsyncError tells it of all communicators that the rank has, and their calls return it.
void set_async_error(int rank, nccl::ncclResult_t result);

/// What was made and not given back; a destroyed communicator leaves what it still had, an aborted one does not.
struct LiveNccl {
  int communicators = 0;
  int registrations = 0;
  int windows = 0;
  int redops = 0;
  bool operator==(const LiveNccl&) const = default;
};
LiveNccl live_nccl();

/// All of the above as at first, but for communicators, which stay.
void reset_nccl();

}  // namespace accord::testing
