#pragma once
// The dispatcher of a group whose buffers are in memory of the CPU.

#include <memory>
#include <optional>
#include <vector>

#include "expert/group_setup.hpp"
#include "expert/host/host_state.hpp"
#include "expert/rendezvous.hpp"
#include "expert/token_dispatcher.hpp"

namespace accord::expert {

/// In each call the ranks meet, move rows, and finish together.
class HostDispatcher final : public TokenDispatcher {
 public:
  explicit HostDispatcher(std::shared_ptr<const GroupSetup> setup);

  /// kUnsupported if the algorithm is kDirect and some ranks do not share memory.
  Status connect() override;
  Result<std::shared_ptr<Handle>> make_handle(const ExpertLayerConfig& layer) override;
  Status add_window(const Window& window) override;

  Status prepare(Handle& handle, const ExpertRouting& routing, const Status& arguments) override;
  Status dispatch(const Handle& handle, const ExpertDispatch& call, const Status& arguments) override;
  Status combine(const Handle& handle, const ExpertCombine& call, const Status& arguments) override;
  Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call, const Status& arguments) override;
  Status combine_backward(const Handle& handle, const ExpertCombineBackward& call, const Status& arguments) override;
  Status decline(const Status& why) override;

  ExpertStatistics statistics() const override;
  Report report() const override;
  /// Ranks have finished with each other's memory when a call returns.
  void wait_for_peers() override {}

 private:
  Status gather_ids(Handle& handle);
  Status overflow(Handle& handle, const ConstBuffer& weights);
  /// Runs a call: meets the other ranks, calls `move`, and finishes with them.
  template <typename Move>
  Status run(CallRecord record, const Handle& handle, const Status& arguments, Move move);
  RowBytes row_size(DType dtype) const;

  const std::shared_ptr<const GroupSetup> setup_;
  const ExpertGroupConfig& config_;
  std::optional<HostState> state_;  // since connect()
  std::vector<std::int32_t> ids_;   // of this rank's tokens
  Report report_;
};

}  // namespace accord::expert
