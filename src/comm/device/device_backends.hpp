#pragma once
// NCCL and accord's own plans in one group. The selection table decides which of them serves a call.

#include <map>
#include <memory>
#include <optional>

#include "comm/device/backend.hpp"
#include "comm/device/plan_backend.hpp"
#include "comm/nccl/backend.hpp"

namespace accord::comm {

class DeviceBackends final : public CollectiveBackend {
 public:
  /// REQUIRES: the group outlives it. `stop`: set before abort(). `lent`: as for NcclBackend.
  DeviceBackends(Group& group, device::Runtime& runtime, Device device, std::shared_ptr<StopWord> stop,
                 nccl::Communicator* lent);

  Status check(const Call& call) const override;
  Status agree(std::span<const Call> calls, Deadline deadline) override;
  Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                 Deadline deadline) override;
  bool can_capture(std::span<const Call> calls) const override;
  bool can_split() const override { return nccl_.can_split(); }
  Status split(int color, int key, CollectiveBackend* child, Deadline deadline) override;
  bool can_shrink() const override { return nccl_.can_shrink(); }
  Status shrink(std::span<const Rank> lost, CollectiveBackend* child, Deadline deadline) override;
  Result<std::shared_ptr<RegisteredMemory>> register_memory(void* memory, std::size_t bytes,
                                                            Deadline deadline) override;
  bool closing_unmaps_all() const override { return without_multicast_ && without_multicast_->ok(); }
  Status asynchronous_error() override { return nccl_.asynchronous_error(); }
  void abort() override;

 private:
  /// Returns what serves a collective: a plan, or null for NCCL. An error is the same on all ranks. Collective if the
  /// request is new. REQUIRES: the ranks know whether they have NCCL.
  Result<const exec::DevicePlan*> choose(const Call& call, Deadline deadline);
  Result<const exec::DevicePlan*> decide(const Call& call, const exec::RequestRecord& record, Deadline deadline);
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
  std::map<exec::RequestWords, const exec::DevicePlan*> choices_;
  std::uint64_t version_ = 0;  ///< of the registered plans that choices_ may refer to
};

}  // namespace accord::comm
