#pragma once
// Control of this library's NCCL by tests. A rank here is the one with which the communicator, or the communicator
// from which it was split or shrunk, was initialised; calls without a communicator have rank -1. Thread-safe.

#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/nccl_abi.hpp"

namespace accord::testing {

/// Returns the path of this library, for dlopen.
std::string library_path();

/// Returns the rank's calls in order, with their arguments: "ncclCommInitRankConfig rank=1 nranks=4 blocking=0
/// maxCTAs=8 netName=Socket", "ncclAllReduce rank=1 count=4 dtype=float32 op=sum", and " group" at the end of a call
/// in a group. `rank=` is the rank in the call's own communicator. ncclGroupEnd has a line for each rank with
/// operations in the group. Query calls are not logged.
std::vector<std::string> log_of(int rank);
void clear_log();

/// Sets the result of ncclGetVersion: major * 10000 + minor * 100 + patch.
void set_version(int version);

/// Makes the next call of `symbol`, by `rank` or by any rank, return `result` and do nothing. Repeated requests queue
/// up.
void fail_next(std::string_view symbol, nccl::ncclResult_t result, std::optional<int> rank = {});

/// Makes the next such operation of that rank hang until its communicator is aborted, or revoked if the operation is
/// not the revocation. For ncclCommInitRank, -InitRankConfig, -Split, -Shrink, -Revoke, -WindowRegister, -Finalize,
/// -Destroy, collectives, ncclSend and ncclRecv: these hang in their streams. "ncclCommConnect" stands for the
/// connecting that a first collective does (set_connecting()). An ncclCommRegister takes 100 ms, and succeeds.
void hang_next(std::string_view symbol, int rank);

/// Sets whether the first collective of a communicator connects its ranks, as from 2.22 on: the call, or the end of its
/// group, then waits for the first collectives of all ranks.
void set_connecting(bool connects);

/// Overrides the option `blocking` of all communicators that are created from now on, as the variable
/// NCCL_COMM_BLOCKING does; nullopt ends that.
void set_blocking(std::optional<bool> blocking);

/// Returns how often a function was called, queries included.
int calls_of(std::string_view symbol);

/// Returns the thread that last called a function on a communicator of the rank.
std::thread::id caller_of(std::string_view symbol, int rank);

/// Returns the number of threads that NCCL would have started: one for each call, or group, on communicators that are
/// not blocking.
int started_threads();

/// Returns the number of threads that a call on a communicator blocks at this moment.
int blocked_threads();

/// Returns how often an abort freed a communicator while another thread was in a call on it, which NCCL forbids. (Here
/// the call ends.)
int aborts_during_calls();

/// Sets whether windows exist. Without them, ncclCommWindowRegister succeeds but gives no window, as on a machine
/// whose GPUs cannot reach each other's memory.
void set_windows(bool exist);

/// From now on, ncclCommGetAsyncError reports `result` for all communicators of the rank, and their calls return it.
void set_async_error(int rank, nccl::ncclResult_t result);

/// Objects that were created and not released. A destroyed communicator leaves behind what it still had; an aborted
/// one does not. One that was revoked and has calls in graphs does not count, since NCCL frees it too early.
struct LiveNccl {
  int communicators = 0;
  int registrations = 0;
  int windows = 0;
  int redops = 0;
  bool operator==(const LiveNccl&) const = default;
};
LiveNccl live_nccl();

/// Resets all of the above, except the communicators.
void reset_nccl();

}  // namespace accord::testing
