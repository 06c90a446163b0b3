#pragma once
// A group's calls on the memory of a GPU.

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
#include "comm/device/backend.hpp"
#include "comm/device/event_pool.hpp"
#include "comm/device/ledger.hpp"
#include "comm/device/stop_word.hpp"
#include "comm/pending_work.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

namespace nccl {
struct Communicator;
}  // namespace nccl

/// Kernels of a layer above, which all ranks of a group put into streams in the same order.
struct KernelCall {
  Device device;
  Stream stream;
  exec::RequestRecord record = {};                                   ///< what the call is, in words of that layer
  std::string (*text)(const exec::RequestRecord& record) = nullptr;  ///< "dispatch of handle 2"
  bool (*alike)(const exec::RequestRecord&, const exec::RequestRecord&) = nullptr;  ///< whether two ranks' go together
};

/// Puts calls into streams, and watches over what is there: a call whose peers die, differ or do not come fails the group, which ends all of them
/// (device_watch.hpp). One device, that of the first call. Thread-safe. Lives as long as its Group.
class DeviceChannel final : public WorkDriver {
 public:
  explicit DeviceChannel(Group& group);
  // NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory there ends the process
  ~DeviceChannel() override;

  /// Whether a call is on a device's memory, which makes it this channel's.
  static bool serves(const Call& call) {
    return call.collective != Collective::kBarrier &&
           (call.input.device.type != DeviceType::kCpu || call.output.device.type != DeviceType::kCpu);
  }

  /// Puts checked calls into the stream of `options`, in its order; they begin together. Ok: they are there. While a stream is captured
  /// nobody watches over them.
  Status run(std::span<const Call> calls, const CallOptions& options) { return run(calls, options, nullptr); }
  /// The same of one call, then `norm` of its output.
  Status run(const Call& call, const device::NormRows& norm, const CallOptions& options) {
    return run(std::span(&call, 1), options, &norm);
  }
  /// The same on a stream of this channel's own: after what is in that of `options` now, beside what comes there later.
  std::shared_ptr<PendingWork> start(std::span<const Call> calls, const CallOptions& options);

  /// Watches over what `put` puts into the stream as over a call: its ranks have to come, and to make calls that are alike. What marks
  /// its end; null while the stream is captured. When the group fails, its kernels end by stop_word().
  Result<std::shared_ptr<DeviceEvent>> run(const KernelCall& call, const std::function<Status()>& put);
  /// That of this rank's kernels on `device`.
  Result<std::shared_ptr<StopWord>> stop_word(Device device);

  /// Whether this rank's backend is connected, so that one for a part of the ranks can be made of it.
  bool can_part();
  /// Collective over the group, if all of its ranks can: connects that of `child`, the group of the ranks of `color`, ordered by `key`; null for a rank
  /// that is in none.
  Status part(int color, int key, Group* child, Deadline deadline);

  /// Whether what is left of the group can be connected by shrink().
  bool can_shrink();
  /// After the ranks but `lost` have made `child`: connects it. Collective over `child`, where can_shrink() is true on all of its ranks. Where one of them cannot,
  /// `child` connects by itself with its first call.
  void shrink(std::span<const Rank> lost, Group& child, Deadline deadline);

  /// Communicator::device_window().
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes, Device device,
                                                            Duration timeout);

  /// lend_nccl().
  Status lend(nccl::Communicator* communicator);

  /// Any thread: ends the works whose calls are over, or all if the group failed. False if there is nothing left to look after.
  bool look();
  /// Whether there may be something.
  bool is_busy();
  /// Any thread, also while another one connects: once a call is over its work has ended.
  void end_what_is_over() override { (void)end_works(Ending::kOver); }
  bool drive_until_ended(const PendingWork& work, Deadline deadline) override;
  /// Until all that was put into streams is over, or the group fails.
  void settle();
  /// The last that this rank does on its device: true once nothing runs there or on a peer's any more that uses the memory of both; false if that takes
  /// too long.
  bool part_from_peers();
  /// What part_from_peers() gave; false before.
  bool has_parted() const { return has_parted_; }
  /// After settle(): nothing is taken any more.
  void close();

 private:
  Status run(std::span<const Call> calls, const CallOptions& options, const device::NormRows* norm);
  /// Whether a thread is in a call of this rank, which may go on for long.
  bool is_calling();
  bool is_any_under_way();
  bool is_any_ending();
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

  enum class Ending { kOver, kAll };
  /// Ends the works whose calls are over, or all: well, but as failure_ once there is one. An error is what the device says of one that is not over.
  /// REQUIRES: neither mutex is held.
  Status end_works(Ending which);
  /// The end of a call that nobody watches over.
  void note_end(std::uint64_t number);
  /// To the peers. REQUIRES: under_way_mutex_ is held.
  void tell_what_is_over();
  /// Whether a rank is of another process, which has opened this one's memory. REQUIRES: mutex_ is held.
  bool loses_memory_of_this_rank(Rank rank) const;
  /// Whether something of `rank` may still run that uses the memory of this one. REQUIRES: mutex_ is held.
  bool may_use_memory(Rank rank) const;

  // REQUIRES, for all of these: mutex_ is held.
  /// Refuses calls that cannot be, and makes what is missing for others.
  Status prepare(std::span<const Call> calls, Deadline deadline);
  Status open(Device device);
  Result<Stream> stream_for(std::span<const Call> calls);
  /// Puts them into `stream`. `work`: ends with them.
  Status put(std::span<const Call> calls, Stream stream, Duration timeout, const std::shared_ptr<PendingWork>& work,
             const device::NormRows* norm = nullptr);
  /// The same of whatever `enqueue` puts there, which notes in `one` who takes part. What marks the end, as run() of kernels has it.
  Result<std::shared_ptr<DeviceEvent>> put(UnderWay one, Stream stream,
                                           const std::function<Status(UnderWay&)>& enqueue);
  /// A call of all ranks. kPeerLost: one has left before it.
  Status note(const exec::RequestRecord& record, UnderWay& one);
  /// Why what is under way has to end, if it has to.
  Status find_failure();
  /// The same as far as peers and deadlines tell it. REQUIRES: under_way_mutex_ is not held; mutex_ need not be.
  Status find_late();
  /// Why calls that go on for long will never end, if that can be seen.
  Status examine(UnderWay& one) const;
  std::string where(const UnderWay& one) const;
  DeviceLedger* ledger_of(Rank rank) const;
  /// `said`, once it has to be taken as it is: NCCL knows that a peer is gone, but not which, and who watches over the peers soon does. Ok until then.
  Status once_named(const Status& said);
  /// The group has failed: from now on works end as that, and what is in streams ends without a result.
  void give_up(const Status& failure);
  /// The part of it that needs neither mutex_ nor the device: waits of kernels end.
  void end_kernels(const Status& failure);

  Group& group_;
  std::mutex mutex_;  ///< held for as long as a call connects
  nccl::Communicator* lent_ = nullptr;
  std::unique_ptr<CollectiveBackend> backend_;
  device::Runtime* runtime_ = nullptr;
  Device device_ = {};
  std::shared_ptr<StopWord> stop_;          ///< written with both mutexes held, as ledgers_ are
  Stream stream_ = {};                      ///< of started calls
  std::map<Rank, Stream> message_streams_;  ///< of started messages with one peer, which wait for no others
  std::shared_ptr<EventPool> events_;
  std::vector<std::unique_ptr<DeviceLedger>> ledgers_;  ///< by rank; null where the window is not mapped
  bool has_graphs_ =
      false;  ///< calls were captured: when the group fails, launches of theirs end by the library's abort alone
  bool closed_ = false;
  std::optional<Clock::time_point> lost_since_;  ///< of once_named()
  std::mutex under_way_mutex_;                   ///< taken after mutex_, and held for moments only; guards what follows
  std::list<UnderWay> under_way_;
  Status failure_;  ///< of the group, from before calls are made to end without a result
  std::vector<std::shared_ptr<DeviceEvent>> ending_ = {};  ///< of calls that ended so, where kernels may still run
  std::uint64_t last_ended_ = 0;  ///< in the ledger: the last call that was under way and is not
  std::atomic<bool> has_parted_ = false;
};

}  // namespace accord::comm
