#pragma once
// A group's calls on GPU memory.

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accord/call.hpp"
#include "accord/call_options.hpp"
#include "comm/device/event_pool.hpp"
#include "comm/device/kernel_call.hpp"
#include "comm/device/ledger.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/device/stop_word.hpp"
#include "comm/pending_work.hpp"
#include "device/runtime.hpp"
#include "exec/device/plan_epilogue.hpp"

namespace accord::comm {

class DeviceBackends;

namespace nccl {
struct Communicator;
}  // namespace nccl

/// Puts calls into streams, and watches them there. A call whose peers die, make other calls or do not arrive fails
/// the group, which ends all calls (device_watch.hpp). Has one device, that of the first call. Thread-safe. Lives as
/// long as its Group.
/// Large because the same two mutexes guard all of it: calls (device_channel.cpp), how they end and fail
/// (device_channel_endings.cpp, _failures.cpp), and what comes from and goes to other groups (_members.cpp).
class DeviceChannel final : public WorkDriver {
 public:
  explicit DeviceChannel(Group& group);
  // NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory there ends the process
  ~DeviceChannel() override;

  /// Whether a call is on device memory, and so belongs to this channel.
  static bool serves(const Call& call) {
    return call.collective != Collective::kBarrier &&
           (call.input.device.type != DeviceType::kCpu || call.output.device.type != DeviceType::kCpu);
  }

  /// Puts checked calls into the stream of `options`, in its order; they begin together. Returns ok once they are in
  /// the stream. Calls in a captured stream are not watched. `epilogue`: follows the last call; null if there is none.
  Status run(std::span<const Call> calls, const CallOptions& options, const exec::PlanEpilogue* epilogue = nullptr);
  /// The same on a stream of this channel: after the current contents of the stream of `options`, concurrently with
  /// its later contents.
  std::shared_ptr<PendingWork> start(std::span<const Call> calls, const CallOptions& options);

  /// Watches what `put` puts into the stream like a call: the other ranks must make matching calls in time. Returns
  /// the event at its end; null while the stream is captured. If the group fails, stop_word() ends its kernels.
  Result<std::shared_ptr<DeviceEvent>> run(const KernelCall& call, const std::function<Status()>& put);
  /// The stop word of this rank's kernels on `device`.
  Result<std::shared_ptr<StopWord>> stop_word(Device device);

  /// Whether this rank's backend is connected, so that one for a part of the ranks can be made from it.
  bool can_split();
  /// A collective of the group, if can_split() is true on all of its ranks: connects the channel of `child`, the group
  /// of the ranks of `color`, ordered by `key`. Null for a rank without a group.
  Status split(int color, int key, Group* child, Deadline deadline);

  /// Whether shrink() can connect the remaining ranks.
  bool can_shrink();
  /// Connects the channel of `child`, which all ranks but `lost` have formed. A collective of `child`, if
  /// can_shrink() is true on all of its ranks. Otherwise `child` connects by itself with its first call.
  void shrink(std::span<const Rank> lost, Group& child, Deadline deadline);

  /// Implements Communicator::device_window().
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes, Device device,
                                                            Duration timeout);

  /// Implements lend_nccl().
  Status lend(nccl::Communicator* communicator);

  /// How soon a thread should look again.
  enum class Pace : std::uint8_t {
    kDone,  ///< nothing is left to watch
    kSlow,  ///< there are graphs, whose launches are not known
    kFast,
  };
  /// Any thread: ends the works whose calls are over, or all works if the group has failed. Calls the device, which may
  /// block: CUDA holds calls up while another thread copies to pageable memory.
  Pace poll();
  /// For one thread, which calls no device: finds out from memory whether calls in streams have to end, and if so, ends
  /// the waits of this rank's kernels. Returns true once, when the group has failed: abort_backends() is next.
  bool look_for_failure();
  /// Makes everything in streams end without a result, after look_for_failure() has returned true. Calls the device.
  void abort_backends();
  Pace pace();
  /// Any thread, also while another one connects: ends the works of calls that are over.
  void end_completed() override { (void)end_works(Ending::kOver); }
  bool drive_until_ended(const PendingWork& work, Deadline deadline) override;
  /// Returns once everything in streams is over, or the group has failed.
  void wait_until_idle();
  /// Called after wait_until_idle(): accepts nothing more.
  void close();

 private:
  bool is_any_under_way();
  /// Calls that were put into a stream and are not over, as far as is known.
  struct UnderWay {
    std::shared_ptr<DeviceEvent> end = {};
    std::uint64_t number = 0;      ///< in the ledger, of the last collective among them; 0 if there is none
    std::vector<Rank> peers = {};  ///< of messages among them
    exec::RequestRecord record = {};
    Deadline deadline = Deadline::never();
    std::shared_ptr<PendingWork> work = {};         ///< null if nobody asked for one
    std::optional<Clock::time_point> left_at = {};  ///< when a peer of its messages was first seen to have left
    decltype(KernelCall::text) text = nullptr;      ///< of kernels, as in their KernelCall
    decltype(KernelCall::alike) alike = nullptr;
  };

  enum class Ending { kOver, kFailed, kAll };
  /// Ends the works whose calls are over; for kFailed also the others once their kernels have had time to end, and
  /// for kAll all of them. The status is ok, or failure_ once there is one. Returns the device's error for a call that
  /// is not over, or why one that is over has no result, whose work has not been ended then. REQUIRES: neither mutex is
  /// held.
  Status end_works(Ending which);

  // REQUIRES, for all of these: mutex_ is held.
  /// Refuses invalid calls, and creates whatever valid ones still lack.
  Status prepare(std::span<const Call> calls, Deadline deadline);
  Status open(Device device);
  Result<Stream> stream_for(std::span<const Call> calls);
  /// Puts them into `stream`. `work` ends with them.
  Status put(std::span<const Call> calls, Stream stream, Duration timeout, const std::shared_ptr<PendingWork>& work,
             const exec::PlanEpilogue* epilogue = nullptr);
  /// The same for anything that `enqueue` puts there; it records the participants in its argument. Returns the event
  /// at its end, as run() of kernels does.
  Result<std::shared_ptr<DeviceEvent>> put(UnderWay one, Stream stream,
                                           const std::function<Status(UnderWay&)>& enqueue);
  /// Records a call of all ranks that is to be put into `stream`; nullopt: which is captured. kPeerLost: a rank left
  /// before it. kInvalidArgument: another rank puts it into the same stream.
  Status note(const exec::RequestRecord& record, std::optional<Stream> stream, UnderWay& one);
  /// Returns why the calls in streams have to end, or ok.
  Status find_failure();
  /// The same, as far as memory shows it: peers, deadlines, and what kernels found. REQUIRES: under_way_mutex_ is not
  /// held; mutex_ need not be.
  Status find_late();
  /// Returns why calls that take long will never end, if that can be seen.
  Status examine(UnderWay& one) const;
  /// Fails with kMismatch if a peer has made another call in this one's place. Records that are gone are not compared,
  /// nor those of ranks with graphs: a graph's launches are not counted, and the same call may be a graph's on one rank
  /// only. REQUIRES: under_way_mutex_ is held.
  Status mismatch_of(const UnderWay& one) const;
  Status mismatch_with(Rank rank, const DeviceLedger& theirs, const UnderWay& one) const;
  std::string where(const UnderWay& one) const;
  /// Null where the window is not mapped, and once this channel is closed.
  DeviceLedger* ledger_of(Rank rank) const;
  /// Returns `status` once it must be accepted as it is, and ok until then: NCCL knows that a peer is gone but not
  /// which, and the threads that watch the peers soon do.
  Status confirmed_failure(const Status& status);
  /// Notes that the group has failed: from now on works end with `failure`, and everything in streams ends without a
  /// result.
  void abort_calls(const Status& failure);
  /// The part of abort_calls() that needs neither mutex_ nor the device: ends waits of kernels, and calls that block in
  /// a library.
  void end_kernels(const Status& failure);
  /// Replaces backends_, which no thread aborts then. REQUIRES: mutex_ is held.
  void set_backends(std::unique_ptr<DeviceBackends> backends);
  /// Marks `one` as the calls that a thread is putting into a stream, for as long as the result lives.
  class Calling;

  Group& group_;
  std::mutex mutex_;        ///< held as long as a call connects
  std::mutex abort_mutex_;  ///< taken after mutex_, or without it; held while calls are aborted
  nccl::Communicator* lent_ = nullptr;
  std::unique_ptr<DeviceBackends> backends_;  ///< written with abort_mutex_ held as well
  device::Runtime* runtime_ = nullptr;
  Device device_ = {};
  std::shared_ptr<StopWord> stop_;          ///< written with under_way_mutex_ held as well, like ledgers_
  Stream stream_ = {};                      ///< of started calls
  std::map<Rank, Stream> message_streams_;  ///< of started messages with one peer, which wait for no others
  std::shared_ptr<EventPool> events_;
  std::vector<std::unique_ptr<DeviceLedger>> ledgers_;  ///< by rank; null where the window is not mapped
  /// Calls were captured: if the group fails, only the library's abort ends launches of their graphs.
  std::atomic<bool> has_graphs_ = false;
  bool closed_ = false;
  std::optional<Clock::time_point> lost_since_;  ///< of confirmed_failure()
  std::mutex under_way_mutex_;                   ///< taken after mutex_, held only briefly; guards what follows
  std::list<UnderWay> under_way_;
  UnderWay* calling_ = nullptr;                 ///< calls that a thread is putting into a stream, which may block
  Status failure_;                              ///< of the group, set before calls are made to end without a result
  std::optional<Clock::time_point> failed_at_;  ///< when failure_ was set
};

}  // namespace accord::comm
