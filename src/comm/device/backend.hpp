#pragma once
// Interface of whole collectives on device memory.

#include <memory>
#include <span>

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "base/clock.hpp"
#include "comm/device/registered_memory.hpp"
#include "exec/device/plan_epilogue.hpp"

namespace accord::comm {

/// Puts calls of one rank of a group into streams of its device. Used by one thread at a time, except for abort().
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;

  /// Fails with kUnsupported if the backend has no such call, before any rank has put anything into a stream.
  /// REQUIRES: check_call() is ok.
  virtual Status check(const Call& call) const = 0;
  /// Settles everything that the ranks must agree on before the first of such calls. An error of one rank is returned
  /// on all of them, and does no harm.
  virtual Status agree(std::span<const Call> calls, Deadline deadline) = 0;
  /// Puts calls that were checked and agreed on into `stream`, together: messages among them make progress at the
  /// same time. After an error it is unknown which of them are in the stream. `epilogue`: follows the last call; null
  /// if there is none.
  virtual Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                         Deadline deadline) = 0;
  /// Whether calls that were checked and agreed on need nothing that is impossible while a stream is captured, such
  /// as NCCL's connecting.
  virtual bool can_capture(std::span<const Call> calls) const = 0;
  /// Whether it is connected with all ranks, so that split() can be called.
  virtual bool can_split() const = 0;
  /// A collective of the group, the last step of a split: prepares `child`, which is new and has the ranks of one
  /// color. Null for a rank without a group, whose color is negative.
  virtual Status split(int color, int key, CollectiveBackend* child, Deadline deadline) = 0;
  /// Whether it is connected with ranks from which shrink() can make a smaller group, also after abort().
  virtual bool can_shrink() const { return false; }
  /// A collective of the remaining ranks, on all of which can_shrink() is true: prepares `child`, which is new and
  /// has those ranks in their order. After an error `child` is as it was. `lost`: the other ranks, at least one.
  virtual Status shrink(std::span<const Rank>, CollectiveBackend*, Deadline) {
    return Status(StatusCode::kInternal, "this backend cannot shrink");
  }
  /// Collective, after agree(): later calls on buffers in `memory` copy less; if it is null, memory of `bytes` is
  /// allocated. An error of one rank is returned on all, and does no harm unless the group has failed.
  virtual Result<std::shared_ptr<RegisteredMemory>> register_memory(void*, std::size_t, Deadline) {
    return Status(StatusCode::kUnsupported, "this backend registers no memory");
  }
  /// Whether closing it removes memory from under the kernels of all other ranks, including those of this process.
  virtual bool closing_unmaps_all() const { return false; }
  /// Returns an error of calls that were put into streams, if one has occurred since.
  virtual Status asynchronous_error() = 0;
  /// Ends everything in streams without a result, and accepts nothing more. Any thread may call it, also while
  /// another is in one of the calls above.
  virtual void abort() = 0;
};

}  // namespace accord::comm
