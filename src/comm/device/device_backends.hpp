#pragma once
// The backends of a group's calls on GPUs: NCCL and accord's own plans.

#include <map>
#include <memory>
#include <optional>

#include "comm/device/backend.hpp"
#include "comm/device/plan_backend.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/nccl/backend.hpp"

namespace accord::comm {

/// Chooses a backend for each call: the selection table decides which of them serves a collective, and NCCL serves
/// messages. Used by one thread at a time, except for abort().
class DeviceBackends {
 public:
  /// REQUIRES: the group outlives it. `stop`: set before abort(). `lent`: as for NcclBackend.
  DeviceBackends(Group& group, device::Runtime& runtime, Device device, std::shared_ptr<StopWord> stop,
                 nccl::Communicator* lent);

  /// Fails with kUnsupported if no backend has such a call. REQUIRES: check_call() is ok.
  Status check(const Call& call) const;
  /// Settles everything that the ranks must agree on before the first of such calls. An error of one rank is returned
  /// on all of them, and does no harm.
  Status agree(std::span<const Call> calls, Deadline deadline);
  /// As CollectiveBackend::enqueue(). REQUIRES: the calls were checked and agreed on.
  Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream, Deadline deadline);
  /// As PlanBackend::set_end().
  void set_end(const std::shared_ptr<DeviceEvent>& end) { plans_.set_end(end); }
  /// As CollectiveBackend::can_capture(), for all of them. REQUIRES: as for enqueue().
  bool can_capture(std::span<const Call> calls);
  /// The next enqueue() is of these calls, into a captured stream. REQUIRES: can_capture() is true.
  void note_capture(std::span<const Call> calls);
  /// Whether it is connected with all ranks, so that split() can be called.
  bool can_split() const { return nccl_.can_split(); }
  /// A collective of the group, the last step of a split: prepares `child`, which is new and has the ranks of one
  /// color. Null for a rank without a group, whose color is negative.
  Status split(int color, int key, DeviceBackends* child, Deadline deadline);
  /// Whether it is connected with ranks from which shrink() can make a smaller group, also after abort().
  bool can_shrink() const { return nccl_.can_shrink(); }
  /// A collective of the remaining ranks, on all of which can_shrink() is true: prepares `child`, which is new and
  /// has those ranks in their order. After an error `child` is as it was. `lost`: the other ranks, at least one.
  Status shrink(std::span<const Rank> lost, DeviceBackends& child, Deadline deadline);
  /// Collective, after agree(): later calls on buffers in `memory` copy less; if it is null, memory of `bytes` is
  /// allocated. Registers it with NCCL and for plans, as far as the ranks have them. An error of one rank is returned
  /// on all, and does no harm unless the group has failed.
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes, Deadline deadline);
  /// Whether closing it removes memory from under the kernels of all other ranks, including those of this process.
  bool closing_unmaps_all() const { return without_multicast_ && without_multicast_->ok(); }
  /// The record of a call that peers compare with theirs. REQUIRES: the call was agreed on.
  exec::RequestRecord announced(const Call& call) const;
  /// As CollectiveBackend::asynchronous_error().
  Status asynchronous_error();
  /// As CollectiveBackend::abort().
  void abort();

 private:
  /// Finds out which backend serves a collective. An error is the same on all ranks. Collective if the request is new.
  /// REQUIRES: the ranks know whether they have NCCL.
  Status choose(const Call& call, Deadline deadline);
  /// The backend of a request, and the request as it is announced to the peers.
  struct Chosen {
    CollectiveBackend* backend = nullptr;
    exec::RequestRecord announced = {};
  };
  Result<Chosen> decide(const Call& call, const exec::RequestRecord& request, Deadline deadline);
  /// REQUIRES: the call was agreed on.
  CollectiveBackend& backend_of(const Call& call);
  /// Null if the windows of the call have been released since it was agreed on. REQUIRES: a collective with parts of
  /// equal counts.
  const Chosen* choice_of(const Call& call) const;
  /// Finds out, once, whether the ranks can use plans. Fails if they could not find out. If they cannot use plans,
  /// rank 0 logs the reason: as a warning if all ranks are on one host.
  Status connect_plans(Deadline deadline);
  /// Finds out, once, whether the ranks have multicast.
  Status connect_multicast(Deadline deadline);
  Status no_backend_error(const Call& call, const Status& nccl_lacks, const Status& plan_lacks,
                          const Status& no_row) const;

  Group& group_;
  NcclBackend nccl_;
  PlanBackend plans_;
  std::optional<Status> without_nccl_;   ///< once known: ok, or why no rank can use it
  std::optional<Status> without_plans_;  ///< likewise
  std::optional<Status> without_multicast_;
  std::map<exec::RequestWords, Chosen> choices_;  ///< of collectives with parts of equal counts
  std::uint64_t version_ = 0;                     ///< of the registered plans that choices_ may refer to
};

}  // namespace accord::comm
