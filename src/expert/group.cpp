#include "expert/group.hpp"

#include <fmt/format.h>

#include <atomic>

#include "base/busy_guard.hpp"
#include "expert/checks.hpp"
#include "expert/config.hpp"

namespace accord::expert {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next = 0;
  return ++next;
}

}  // namespace

Group::Group(std::shared_ptr<const GroupSetup> setup, std::unique_ptr<TokenDispatcher> dispatcher)
    : setup_(std::move(setup)), id_(next_id()), dispatcher_(std::move(dispatcher)) {}

Group::~Group() { dispatcher_->wait_for_peers(); }

void Group::close() {
  dispatcher_->wait_for_peers();
  Communicator own = setup_->communicator;
  own.close();
}

Status Group::busy() const {
  return {StatusCode::kWrongState,
          fmt::format("expert group \"{}\": another thread is in a call", setup_->communicator.name())};
}

Status Group::add_window(const Window& window) {
  const BusyGuard guard(busy_);
  return guard.entered() ? dispatcher_->add_window(window) : busy();
}

Result<std::shared_ptr<Handle>> Group::make_handle(const ExpertLayerConfig& layer) {
  const BusyGuard guard(busy_);
  if (!guard.entered()) return busy();
  const Result<ExpertLayerConfig> resolved = resolve(layer, setup_->config);
  if (!resolved.ok()) return resolved.status().with_context("expert handle");
  const std::uint32_t number = handles_++;
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Handle> handle, dispatcher_->make_handle(*resolved));
  handle->group = id_;
  handle->number = number;
  return handle;
}

template <typename Call>
Status Group::checked(const Call& call, const Handle& handle) const {
  if (handle.group == id_) return check(call, handle, setup_->config);
  return {StatusCode::kInvalidArgument, fmt::format("handle {} belongs to another group", handle.number)};
}

Status Group::prepare(Handle& handle, const ExpertRouting& routing) {
  const BusyGuard guard(busy_);
  if (!guard.entered()) return busy();
  if (handle.group == id_) handle.prepared = false;
  ACCORD_RETURN_IF_ERROR(dispatcher_->prepare(handle, routing, checked(routing, handle)));
  ++handle.prepares;
  handle.prepared = true;
  return {};
}

template <typename Call>
Status Group::run(Move<Call> move, const Handle& handle, const Call& call) {
  const BusyGuard guard(busy_);
  if (!guard.entered()) return busy();
  return (dispatcher_.get()->*move)(handle, call, checked(call, handle));
}

Status Group::dispatch(const Handle& handle, const ExpertDispatch& call) {
  return run(&TokenDispatcher::dispatch, handle, call);
}
Status Group::combine(const Handle& handle, const ExpertCombine& call) {
  return run(&TokenDispatcher::combine, handle, call);
}
Status Group::dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call) {
  return run(&TokenDispatcher::dispatch_backward, handle, call);
}
Status Group::combine_backward(const Handle& handle, const ExpertCombineBackward& call) {
  return run(&TokenDispatcher::combine_backward, handle, call);
}

Status Group::decline(Handle& handle, bool prepares, const Status& why) {
  const BusyGuard guard(busy_);
  if (!guard.entered()) return busy();
  if (prepares && handle.group == id_) handle.prepared = false;
  return dispatcher_->decline(why);
}

}  // namespace accord::expert
