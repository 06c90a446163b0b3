#pragma once
// The interface between a group and the memory of its calls. host/ and device/ implement it; above them, nothing
// distinguishes devices.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "expert/handle.hpp"
#include "expert/report.hpp"

namespace accord::expert {

/// Computes the maps of a group and moves the rows of its calls. One call at a time.
///
/// The calls of a step are collective. `arguments` is the result of this rank's own checks. If it is an error, the call
/// moves nothing: on the host it reports the error to all ranks, on a device it returns it on this rank alone. A group
/// that has failed returns its failure instead. REQUIRES, for all calls: connect(), and unless `arguments` is an error,
/// a handle of make_handle().
class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;

  /// Collective: creates the memory that ranks share. Either all ranks get it, or all get an error.
  virtual Status connect() = 0;
  /// Creates a handle with memory for the largest map.
  virtual Result<std::shared_ptr<Handle>> make_handle(const ExpertLayerConfig& layer) = 0;
  /// Collective: from now on, buffers in `window` are read and written in place.
  virtual Status add_window(const Window& window) = 0;

  /// Makes `handle` the map of `routing`, and sets its generation.
  virtual Status prepare(Handle& handle, const ExpertRouting& routing, const Status& arguments) = 0;
  virtual Status dispatch(const Handle& handle, const ExpertDispatch& call, const Status& arguments) = 0;
  virtual Status combine(const Handle& handle, const ExpertCombine& call, const Status& arguments) = 0;
  virtual Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call,
                                   const Status& arguments) = 0;
  virtual Status combine_backward(const Handle& handle, const ExpertCombineBackward& call, const Status& arguments) = 0;
  /// Notifies the ranks that make a call that this rank cannot make it, and why.
  virtual Status decline(const Status& why) = 0;

  /// Sums over all calls so far.
  virtual ExpertStatistics statistics() const = 0;
  virtual Report report() const = 0;
  /// Blocks until no other rank writes into this rank's memory for a call already made. Returns early if the group
  /// has failed, and after a few seconds.
  virtual void wait_for_peers() = 0;
};

}  // namespace accord::expert
