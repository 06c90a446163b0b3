#pragma once
// The state behind an ExpertGroup.

#include <atomic>
#include <cstdint>
#include <memory>

#include "accord/expert_parallel.hpp"
#include "expert/group_setup.hpp"
#include "expert/handle.hpp"
#include "expert/report.hpp"
#include "expert/token_dispatcher.hpp"

namespace accord::expert {

/// Admits one call at a time, checks its arguments, and passes it to the dispatcher.
class Group {
 public:
  static Result<std::shared_ptr<Group>> create(Communicator& borrowed, Result<ExpertGroupConfig> config);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupSetup& setup() const { return *setup_; }
  ExpertStatistics statistics() const { return dispatcher_->statistics(); }
  Report report() const { return dispatcher_->report(); }

  Status add_window(const Window& window);
  Result<std::shared_ptr<Handle>> make_handle(const ExpertLayerConfig& layer);
  Status prepare(Handle& handle, const ExpertRouting& routing);
  Status dispatch(const Handle& handle, const ExpertDispatch& call);
  Status combine(const Handle& handle, const ExpertCombine& call);
  Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call);
  Status combine_backward(const Handle& handle, const ExpertCombineBackward& call);
  Status decline(Handle& handle, bool prepares, const Status& why);
  void close();

 private:
  Group(std::shared_ptr<const GroupSetup> setup, std::unique_ptr<TokenDispatcher> dispatcher);
  /// The error of a call that another thread's call excludes.
  Status busy() const;
  /// Returns what is wrong with the arguments of a call.
  template <typename Call>
  Status checked(const Call& call, const Handle& handle) const;
  template <typename Call>
  using Move = Status (TokenDispatcher::*)(const Handle&, const Call&, const Status&);
  template <typename Call>
  Status run(Move<Call> move, const Handle& handle, const Call& call);

  const std::shared_ptr<const GroupSetup> setup_;
  const std::uint64_t id_;
  std::uint32_t handles_ = 0;
  std::atomic<bool> busy_ = false;
  const std::unique_ptr<TokenDispatcher> dispatcher_;
};

}  // namespace accord::expert
