#pragma once
// All that this library's NCCL knows: communicators, what ranks wait for, and what tests asked for. One mutex guards it; whatever blocks
// waits for a Point of the HostRuntime, without the mutex.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/host_runtime.hpp"
#include "device/nccl_abi.hpp"
#include "device/nccl_control.hpp"
#include "device/nccl_reduce.hpp"

namespace accord::testing::nccl {

inline constexpr int kVersion = 22907;

enum class Kind { kReduce, kBroadcast, kAllReduce, kReduceScatter, kAllGather, kSend, kReceive };

/// What ncclRedOpCreatePreMulSum made: a scalar, or where it will lie.
struct Factor {
  ncclDataType_t dtype;
  const void* memory;  ///< null: `value` has it
  Scalar value;
};

/// A call, as it was made.
struct Operation {
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t dtype = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;  ///< or the peer
  std::optional<Factor> factor;
  bool hangs = false;
};

/// An operation whose turn in its stream has come.
struct Posted {
  Operation operation;
  ncclComm* comm;
  PointRef done;
};

/// A rank in a call that returns when others have made it too.
struct Visit {
  ncclComm* comm;
  std::shared_ptr<ncclComm> child;  ///< null if it gets none
  int color = 0;
  int key = 0;
  PointRef done = {};
};
using Visits = std::map<int, Visit>;  // by rank

/// What the ranks of one communicator share.
struct Clique {
  std::map<std::uint64_t, std::map<int, Posted>> collectives;  ///< by their number in the communicator's order, by rank
  std::map<std::pair<int, int>, std::deque<Posted>> sends;     ///< by (from, to)
  std::map<std::pair<int, int>, std::deque<Posted>> receives;
  std::map<std::string, Visits> visits;
};

/// A communicator's options, as they were given.
struct Options {
  bool blocking = true;
  std::string text;  ///< " blocking=0 maxCTAs=8": those that were set
};

/// ncclInvalidArgument for one that is not initialised or has a value that NCCL refuses. Null is `inherited`.
ncclResult_t read_options(const ncclConfig_t* config, const Options& inherited, Options& options);

struct World {
  static World& instance();

  std::mutex mutex;
  int version = kVersion;
  std::map<ncclComm*, std::shared_ptr<ncclComm>> live;
  std::uint64_t next_id = 1;
  /// Ids that were given out and not used up.
  struct Forming {
    int size = 0;
    std::map<int, std::shared_ptr<ncclComm>> come;
  };
  std::map<std::string, Forming> forming;

  std::map<int, std::vector<std::string>> log;
  struct Failure {
    std::optional<int> rank;
    ncclResult_t result;
  };
  std::map<std::string, std::list<Failure>, std::less<>> failures;
  std::set<std::pair<std::string, int>> hangs;
  LiveNccl counts;  ///< without communicators
  bool has_windows = true;

  // REQUIRES: mutex is held.
  void note(int rank, std::string line);
  ncclResult_t take_failure(std::string_view symbol, int rank);
  bool take_hang(std::string_view symbol, int rank);
  std::shared_ptr<ncclComm> find(ncclComm* comm) const;
};

struct ncclWindow_vidmem {};

/// One rank of a communicator.
struct ncclComm {
  ncclComm(int home_rank_, int device_, Options options_);

  const int home_rank;
  const int device;
  const Options options;
  PointRef formed;               ///< all ranks have come; or aborted
  ncclComm_t* handle = nullptr;  ///< the caller's, which is written when it is formed
  std::shared_ptr<Clique> clique;
  int rank = -1;
  int size = 0;
  bool aborted = false;
  bool stopped = false;  ///< what is in streams does not happen
  bool revoked = false;
  bool finalized = false;
  ncclResult_t error = ncclSuccess;
  std::string error_text;
  std::set<PointRef> pending;         ///< of posted operations, visits and what hangs: abort lets them all happen
  std::set<PointRef> pending_visits;  ///< those that make it be in progress
  std::uint64_t collectives = 0;
  std::map<std::string, int> visits;
  PointRef last;  ///< behind all that was put into streams
  cudaStream_t last_stream = nullptr;
  std::map<void*, std::unique_ptr<char>> registrations;
  std::map<ncclWindow_t, std::unique_ptr<ncclWindow_vidmem>> windows;
  std::map<int, Factor> redops;
  int next_redop = ncclNumOps;

  Device where() const { return {DeviceType::kCuda, static_cast<std::int16_t>(device)}; }
};

/// Remembers why for ncclGetLastError of this thread.
ncclResult_t fail(ncclResult_t result, std::string why);

/// What ncclCommGetAsyncError tells. REQUIRES: the world's mutex is held.
ncclResult_t state_of(const ncclComm& comm);

enum class Needs { kExistence, kReadiness };

/// The communicator, if it is as the call needs it and the test asked for no failure of `symbol`; else null, and `result` says why not.
/// REQUIRES: the world's mutex is held.
std::shared_ptr<ncclComm> ask(std::string_view symbol, ncclComm_t comm, Needs needs, ncclResult_t& result);
/// The same for a call that is noted, `line` being what follows the symbol and rank.
std::shared_ptr<ncclComm> begin(std::string_view symbol, ncclComm_t comm, Needs needs, const std::string& line,
                                ncclResult_t& result);

/// A communicator of `ranks`, in this order. REQUIRES: the world's mutex is held.
void form(const std::vector<std::shared_ptr<ncclComm>>& ranks);

/// The rank's part in the next call `name` of its communicator; when `expected` ranks have come, `complete` is called and all are done.
/// Returns when this one is to return. Gives back the world's mutex.
ncclResult_t meet(std::unique_lock<std::mutex>& lock, std::string_view name, Visit visit, std::size_t expected,
                  const std::function<void(Visits&)>& complete);

/// The end of a call that waits for `done`: at the end of the group, if there is one. Gives back the world's mutex.
ncclResult_t conclude(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm, const PointRef& done);

/// Ends all that the rank waits for, without a result. REQUIRES: the world's mutex is held.
void end_pending(ncclComm& comm);

/// Into the stream, or into the thread's group. REQUIRES: the world's mutex is held.
ncclResult_t start(const std::shared_ptr<ncclComm>& comm, const Operation& operation, cudaStream_t stream);
/// Whether this thread is in a group.
bool in_group();
/// If this thread is in a group, that has failed. Returns `result`.
ncclResult_t fail_group(ncclResult_t result);
void wait_at_group_end(const std::shared_ptr<ncclComm>& comm, const PointRef& done);

/// The operation's turn has come: matches it with those of others, and runs it if it is the last. REQUIRES: the world's mutex is held.
void post(Posted posted);

}  // namespace accord::testing::nccl
