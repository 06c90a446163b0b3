#pragma once
// The state of this library's NCCL: communicators, waiting ranks, and what tests have requested. One mutex guards it.
// Whatever blocks waits for a Point of the HostRuntime, without holding the mutex.

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
#include <thread>
#include <utility>
#include <vector>

#include "device/host_runtime.hpp"
#include "device/nccl_abi.hpp"
#include "device/nccl_control.hpp"
#include "device/nccl_reduce.hpp"

namespace accord::testing::nccl {

inline constexpr int kVersion = 22907;

enum class Kind { kReduce, kBroadcast, kAllReduce, kReduceScatter, kAllGather, kSend, kReceive };

/// An operator of ncclRedOpCreatePreMulSum: a scalar, or the address where it will be.
struct Factor {
  ncclDataType_t dtype;
  const void* memory;  ///< null: use `value`
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

/// An operation that its stream has reached.
struct Posted {
  Operation operation;
  ncclComm* comm;
  PointRef done;
};

/// A rank in a call that returns once the other ranks have made it too.
struct Arrival {
  ncclComm* comm;
  std::shared_ptr<ncclComm> child;  ///< null if the rank gets none
  int color = 0;
  int key = 0;
  std::string place = {};  ///< of a window, which must be equal on all ranks
  PointRef done = {};
};
using Arrivals = std::map<int, Arrival>;  // by rank

/// The state that the ranks of one communicator share.
struct Clique {
  std::map<std::uint64_t, std::map<int, Posted>> collectives;  ///< by number in the communicator's order, then rank
  std::map<std::pair<int, int>, std::deque<Posted>> sends;     ///< by (from, to)
  std::map<std::pair<int, int>, std::deque<Posted>> receives;
  std::map<std::string, Arrivals> arrivals;
};

/// A communicator's options, as they were given.
struct Options {
  bool blocking = true;
  std::string text;  ///< " blocking=0 maxCTAs=8": the options that were set
};

/// Returns ncclInvalidArgument for options that are not initialised or have a value that NCCL rejects. A null
/// `config` stands for `inherited`.
ncclResult_t read_options(const ncclConfig_t* config, const Options& inherited, Options& options);

struct World {
  static World& instance();

  std::mutex mutex;
  int version = kVersion;
  std::map<ncclComm*, std::shared_ptr<ncclComm>> live;
  std::uint64_t next_id = 1;
  /// Ids that were created and not yet used up.
  struct Forming {
    int size = 0;
    std::map<int, std::shared_ptr<ncclComm>> arrived;
  };
  std::map<std::string, Forming> forming;

  std::map<int, std::vector<std::string>> log;
  struct Failure {
    std::optional<int> rank;
    ncclResult_t result;
  };
  std::map<std::string, std::list<Failure>, std::less<>> failures;
  std::set<std::pair<std::string, int>> hangs;
  LiveNccl counts;  ///< except communicators
  bool has_windows = true;
  bool connects_later = false;                                     ///< set_connecting()
  std::optional<bool> blocking;                                    ///< set_blocking()
  std::map<std::string, int, std::less<>> calls;                   ///< by symbol
  std::map<std::pair<std::string, int>, std::thread::id> callers;  ///< by symbol and rank
  int started_threads = 0;
  int aborts_during_calls = 0;

  // REQUIRES: mutex is held.
  void log_call(int rank, std::string line);
  ncclResult_t pop_failure(std::string_view symbol, int rank);
  bool pop_hang(std::string_view symbol, int rank);
  std::shared_ptr<ncclComm> find(ncclComm* comm) const;
};

struct ncclWindow_vidmem {};

/// One rank of a communicator.
struct ncclComm {
  ncclComm(int home_rank_, int device_, Options options_);

  const int home_rank;
  const int device;
  const Options options;
  PointRef formed;               ///< all ranks have arrived, or it was aborted
  ncclComm_t* handle = nullptr;  ///< the caller's handle, written when formed
  std::shared_ptr<Clique> clique;
  int rank = -1;
  int size = 0;
  bool aborted = false;
  bool stopped = false;  ///< work in streams is not complete
  bool revoked = false;
  bool finalized = false;
  bool captured = false;  ///< operations were captured
  ncclResult_t error = ncclSuccess;
  std::string error_text;
  bool has_connected = false;           ///< by its first collective
  bool is_unpolled = false;             ///< not blocking: in progress until it is asked
  int in_calls = 0;                     ///< threads that a call on it blocks
  std::set<PointRef> pending;           ///< of posted operations, visits and hangs; abort completes all of them
  std::set<PointRef> cut;               ///< those that an abort or a revocation ended
  std::set<PointRef> pending_arrivals;  ///< those during which the communicator is in progress
  std::uint64_t collectives = 0;
  std::map<std::string, int> arrivals;
  PointRef last;  ///< after everything that was put into streams
  cudaStream_t last_stream = nullptr;
  std::map<void*, std::unique_ptr<char>> registrations;
  struct OpenWindow {
    std::unique_ptr<ncclWindow_vidmem> window;
    int number;         ///< of its collective, on all ranks
    const void* begin;  ///< of the allocation that it lies in
  };
  std::map<ncclWindow_t, OpenWindow> windows;
  int window_collectives = 0;
  std::map<int, Factor> redops;
  int next_redop = ncclNumOps;

  Device where() const { return {DeviceType::kCuda, static_cast<std::int16_t>(device)}; }
};

/// Stores the reason for this thread's ncclGetLastError, and returns `result`.
ncclResult_t fail(ncclResult_t result, std::string reason);

/// Returns the state that ncclCommGetAsyncError reports. REQUIRES: the world's mutex is held.
ncclResult_t state_of(const ncclComm& comm);

enum class Needs { kExistence, kReadiness };

/// Returns the communicator if it is in the state that the call needs and the test has requested no failure of
/// `symbol`. Otherwise returns null, and `result` is the reason. REQUIRES: the world's mutex is held.
std::shared_ptr<ncclComm> find_in_state(std::string_view symbol, ncclComm_t comm, Needs needs, ncclResult_t& result);
/// Does the same for a call that is logged; `line` is the text after the symbol and the rank.
std::shared_ptr<ncclComm> begin(std::string_view symbol, ncclComm_t comm, Needs needs, const std::string& line,
                                ncclResult_t& result);

/// Forms a communicator of `ranks`, in this order. REQUIRES: the world's mutex is held.
void form(const std::vector<std::shared_ptr<ncclComm>>& ranks);

/// Does the rank's part in the next call of `name` on its communicator. When `expected` ranks have arrived, calls
/// `complete` and ends the call for all of them. Returns when this rank's call may return. Releases the world's
/// mutex.
ncclResult_t rendezvous(std::unique_lock<std::mutex>& lock, std::string_view name, Arrival arrival,
                        std::size_t expected, const std::function<void(Arrivals&)>& complete);

/// Counts a call of `symbol` by this thread; `rank` is -1 for one without a communicator. REQUIRES: the world's mutex
/// is held.
void count_call(std::string_view symbol, int rank);

/// Connects the communicator as its first collective does, if that is requested and has not been done. Returns when the
/// call may go on. The world's mutex is released meanwhile.
ncclResult_t connect_ranks(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm);

/// Ends a call that waits for `done`, at the end of the group if there is one. Releases the world's mutex.
ncclResult_t conclude(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm, const PointRef& done);

/// Ends everything that the rank waits for, without a result. REQUIRES: the world's mutex is held.
void end_pending(ncclComm& comm);

/// Waits until everything that the rank put into streams is over. The world's mutex is released meanwhile.
void await_streams(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm);

/// Puts the operation into the stream, or into the thread's group. REQUIRES: the world's mutex is held.
ncclResult_t start(const std::shared_ptr<ncclComm>& comm, const Operation& operation, cudaStream_t stream);
/// Returns whether this thread is in a group.
bool in_group();
/// Marks this thread's group, if there is one, as failed. Returns `result`.
ncclResult_t fail_group(ncclResult_t result);
void wait_at_group_end(const std::shared_ptr<ncclComm>& comm, const PointRef& done);
void free_at_group_end(const std::shared_ptr<ncclComm>& comm);
/// The end of ncclCommAbort(). REQUIRES: `lock` holds the world's mutex, which is released meanwhile.
void free_aborted(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm);

/// Called when the stream reaches the operation. Matches it with those of other ranks, and runs them if it is the
/// last. REQUIRES: the world's mutex is held.
void post(Posted posted);

}  // namespace accord::testing::nccl
