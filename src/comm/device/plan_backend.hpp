#pragma once
// A group's calls on GPUs with accord's own plans.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "accord/call.hpp"
#include "base/clock.hpp"
#include "comm/device/backend.hpp"
#include "comm/device/event_pool.hpp"
#include "comm/device/multicast_memory.hpp"
#include "comm/device/peer_memory.hpp"
#include "comm/device/plan_windows.hpp"
#include "comm/device/stop_word.hpp"
#include "device/runtime.hpp"
#include "exec/device/device_plan.hpp"
#include "plan/algorithms.hpp"

namespace accord::comm {

class Group;

/// Collectives with parts of equal counts, where the GPUs of all ranks can access each other. Used by one thread at a
/// time, except for abort(). Calls of a group run in order in whatever streams they are; within a capture that order
/// is up to the capture.
class PlanBackend final : public CollectiveBackend {
 public:
  /// `stop`: set before abort(); it ends the waits of kernels, which report faults there.
  PlanBackend(Group& group, device::Runtime& runtime, Device device, std::shared_ptr<StopWord> stop);
  /// Ends running kernels, and waits a little for that.
  // NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory there ends the process
  ~PlanBackend() override;
  PlanBackend(const PlanBackend&) = delete;
  PlanBackend& operator=(const PlanBackend&) = delete;

  /// Whether check() would succeed.
  static bool serves(const Call& call);
  Status check(const Call& call) const override;
  /// Collective, called once: gives each rank memory that the kernels of all ranks can access. kUnsupported says why
  /// there is none.
  Status connect(Deadline deadline);
  /// Collective, called once after connect(): creates memory that a switch reaches on all ranks at once, for plans
  /// with multicast. kUnsupported says why there is none.
  Status connect_multicast(Deadline deadline);
  /// Collective, called after connect(): plans on all ranks may access `lent` of each rank, until the result is gone.
  /// If it is null, memory is allocated. kUnsupported says why that is impossible.
  Result<std::shared_ptr<PlanWindow>> add_window(const LentMemory& lent, std::size_t bytes, Deadline deadline);
  /// The request of a call. Its phase is kRegistered if the buffers are in windows; `parts` is then 1 if the call is in
  /// place, otherwise 0.
  exec::RequestRecord request_of(const Call& call) const { return find_places(call).record; }
  /// Makes the program of a request. Calls use it until forget(). A failure is the same on all ranks.
  Status prepare(const exec::RequestRecord& request, const plan::AlgorithmEntry& algorithm);
  void forget() { plans_.clear(); }
  /// REQUIRES: the requests of the calls are prepared.
  Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                 Deadline deadline) override;
  bool can_capture(const Call&) const override { return true; }
  /// Takes the event at the end of calls that were put into a stream, which is not captured. The next launch waits for
  /// it if there were plans among them. REQUIRES: called after each successful enqueue() outside of captures.
  void set_end(const std::shared_ptr<DeviceEvent>& end);
  /// Kernels report nothing: their waits end with the group.
  Status asynchronous_error() override { return {}; }
  /// Also waits a little for running kernels, which may still write to the buffers of calls.
  void abort() override;

 private:
  Status launch(const Call& call, const exec::PlanEpilogue* epilogue, Stream stream);
  bool is_under_way() const;
  struct Request {
    exec::RequestRecord record;
    std::optional<PlanWindows::Places> places;
  };
  Request find_places(const Call& call) const;
  /// Finds out how many blocks a kernel may have, and returns the most instances of a call.
  Result<int> agree_on_instances(Deadline deadline);
  /// Writes addresses where kernels look for them: at `offset` of this rank's memory.
  Status publish_addresses(std::size_t offset, const std::vector<std::byte*>& addresses);

  Group& group_;
  device::Runtime& runtime_;
  const Device device_;
  exec::DeviceLayout layout_;
  int max_blocks_ = 1;  ///< of one kernel, so that those of all ranks on a GPU fit side by side
  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<MulticastMemory> multicast_;
  const std::shared_ptr<PlanWindows> windows_ = std::make_shared<PlanWindows>();
  std::shared_ptr<StopWord> stop_;
  std::map<exec::RequestWords, exec::DevicePlan> plans_;
  std::mutex launches_;  ///< guards what follows
  bool aborted_ = false;
  // The last launch that was not captured:
  std::uint64_t last_stream_ = 0;
  std::shared_ptr<DeviceEvent> last_end_ = {};  ///< null if there was none
  bool has_end_ = true;                         ///< false until set_end()
};

}  // namespace accord::comm
