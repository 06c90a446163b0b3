#pragma once
// Whole collectives on the memory of devices.

#include <memory>
#include <span>

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/device/registered_memory.hpp"
#include "device/norm_rows.hpp"

namespace accord::comm {

/// Puts calls of one rank of a group into streams of its device. Used by one thread at a time, but for abort().
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;

  /// kUnsupported if it has no such call, before any rank has put anything anywhere. REQUIRES: check_call() is ok.
  virtual Status check(const Call& call) const = 0;
  /// What the ranks have to agree on before the first of such calls; an error of one rank is one on all of them, and harms nothing.
  virtual Status agree(std::span<const Call> calls, Deadline deadline) = 0;
  /// Puts calls that were checked and agreed on into `stream`, together: messages among them go on at the same time. After an error it is unknown which
  /// of them are there.
  virtual Status enqueue(std::span<const Call> calls, Stream stream, Deadline deadline) = 0;
  /// The same of one call, then `norm` of its output, which nobody else has to know of.
  virtual Status enqueue(const Call&, const device::NormRows&, Stream, Deadline) {
    return Status(StatusCode::kInternal, "it has no norms");
  }
  /// Whether calls that were checked and agreed on need nothing that cannot be done while a stream is captured, as NCCL's connecting.
  virtual bool can_capture(std::span<const Call> calls) const = 0;
  /// Whether it is connected with all ranks, so that child() can be called.
  virtual bool can_part() const = 0;
  /// Collective over the group, as its last step a split: what `child`, which is new and of the ranks of one color, needs to begin. Null for a rank of no
  /// group, whose color is negative.
  virtual Status part(int color, int key, CollectiveBackend* child, Deadline deadline) = 0;
  /// Whether it is connected with ranks of which shrink() can make a smaller group, also after abort().
  virtual bool can_shrink() const { return false; }
  /// Collective over the ranks that are left, whose can_shrink() is all true: what `child`, which is new and of those ranks in their order, needs to begin.
  /// After an error `child` is as it was. `lost`: the others, at least one.
  virtual Status shrink(std::span<const Rank>, CollectiveBackend*, Deadline) {
    return Status(StatusCode::kInternal, "it cannot shrink");
  }
  /// Collective, after agree(): calls on buffers in `memory`, or in `bytes` that it allocates where that is null, copy less from now on. An error of one
  /// rank is one on all, and harms nothing unless the group has failed.
  virtual Result<std::shared_ptr<RegisteredMemory>> register_memory(void*, std::size_t, Deadline) {
    return Status(StatusCode::kUnsupported, "it registers no memory");
  }
  /// Whether closing takes memory from kernels of all other ranks, also those of this process.
  virtual bool takes_memory_from_all() const { return false; }
  /// What has gone wrong since with calls that were put into streams.
  virtual Status asynchronous_error() = 0;
  /// Ends what is in streams without a result, and takes nothing any more. Any thread, also while another one is in one of the calls above.
  virtual void abort() = 0;
};

}  // namespace accord::comm
