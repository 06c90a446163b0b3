#pragma once
// Interface of whole collectives on device memory.

#include <span>

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "base/clock.hpp"
#include "exec/device/plan_epilogue.hpp"

namespace accord::comm {

/// Puts calls of one rank of a group into streams of its device. DeviceBackends chooses a backend for each call. Used
/// by one thread at a time, except for abort().
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;

  /// Fails with kUnsupported if the backend has no such call, before any rank has put anything into a stream.
  /// REQUIRES: check_call() is ok.
  virtual Status check(const Call& call) const = 0;
  /// Puts calls into `stream`, together: messages among them make progress at the same time. After an error it is
  /// unknown which of them are in the stream. `epilogue`: follows the last call; null if there is none. REQUIRES: they
  /// were checked, and the ranks have agreed that this backend runs them.
  virtual Status enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                         Deadline deadline) = 0;
  /// Whether such a call needs nothing that is impossible while a stream is captured, such as NCCL's connecting.
  /// REQUIRES: as for enqueue().
  virtual bool can_capture(const Call& call) const = 0;
  /// Returns an error of calls that were put into streams, if one has occurred since.
  virtual Status asynchronous_error() = 0;
  /// Ends everything in streams without a result, and accepts nothing more. Any thread may call it, also while
  /// another is in one of the calls above.
  virtual void abort() = 0;
};

}  // namespace accord::comm
