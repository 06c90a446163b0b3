#pragma once
// The interface between the calls of a group on devices and the way in which its rows travel.

#include "expert/device/device_handle.hpp"
#include "expert/device/prepare_map.hpp"
#include "expert/device/sum_rows.hpp"
#include "expert/rendezvous.hpp"
#include "expert/rows.hpp"

namespace accord::expert {

/// Call properties that the ranks must agree on.
struct Terms {
  Operation operation = Operation::kPrepare;
  DType dtype = DType::kFloat32, result = DType::kFloat32;
  Given scales = Given::kNo, weights = Given::kNo;
};

/// A call that moves rows.
struct Move {
  Terms terms;
  Stream stream;
  std::int64_t room = 0;  ///< rows that fit into the buffers of slots
  RowBytes bytes;
};

/// Moves the rows of one call at a time. The arguments of a call are valid.
class RowExchange {
 public:
  virtual ~RowExchange() = default;

  virtual RowPath path() const = 0;
  /// Builds the handle's map in `stream`.
  virtual Status prepare(const DeviceHandle& handle, const RoutingInput& input, Stream stream) = 0;
  /// Moves rows to the experts.
  virtual Status send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens,
                           const Rows& slots) = 0;
  /// Moves rows back, and adds them up. `sums`: everything except where the rows are. `weights`: gets the weights of
  /// this rank's choices, if the call moves weights; or null.
  virtual Status return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots, RowSums sums,
                             std::byte* weights) = 0;
  /// As TokenDispatcher::wait_for_peers().
  virtual void wait_for_peers() = 0;
};

}  // namespace accord::expert
