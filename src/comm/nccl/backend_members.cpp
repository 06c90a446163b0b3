// Communicators made from that of all ranks, memory registered with it, and its end.
#include <fmt/format.h>

#include <utility>

#include "comm/group.hpp"
#include "comm/nccl/backend.hpp"

namespace accord::comm {
namespace {

/// For ncclCommRevoke() to stop operations in streams.
constexpr std::chrono::seconds kStopTimeout(2);
/// For operations in streams to end after an abort. Those queued behind the caller's own kernels take longer.
constexpr std::chrono::milliseconds kAbortTimeout(500);

}  // namespace

Status NcclBackend::split(int color, int key, NcclBackend* child, Deadline deadline) {
  constexpr int kNoColor = -1;
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  std::shared_ptr<Connection> none;
  ACCORD_ASSIGN_OR_RETURN(const auto made,
                          child != nullptr ? child->add_connection(child->whole_) : add_connection(none));
  const auto make = [call = library().call.CommSplit, key, color = child != nullptr ? color : kNoColor](
                        nccl::Communicator* parent, nccl::Communicator** part, nccl::Config* config) {
    return call(parent, color, key, part, config);
  };
  const nccl::Settings settings = child != nullptr ? child->settings() : this->settings();
  Status parted =
      whole_->make_child(Connection::Purpose::kCalling, "CommSplit", made, settings, make, check_until(deadline));
  if (parted.ok()) return parted;
  // The call may still be in NCCL, which fails on all ranks or on none.
  interrupt();
  if (child != nullptr) child->interrupt();
  return parted;
}

bool NcclBackend::can_shrink() const {
  if (whole_ == nullptr || library().call.CommShrink == nullptr) return false;
  return !is_aborted() || whole_->is_revoked_by(Deadline::in(kStopTimeout));
}

Status NcclBackend::shrink(std::span<const Rank> lost, NcclBackend& child, Deadline deadline) {
  if (!can_shrink()) return Status(StatusCode::kAborted, "it was aborted");
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  ACCORD_ASSIGN_OR_RETURN(const auto made, child.add_connection(child.whole_));
  const auto make = [call = library().call.CommShrink, excluded = std::vector<int>(lost.begin(), lost.end()),
                     flags = is_aborted() ? nccl::kShrinkAbort : nccl::kShrinkDefault](
                        nccl::Communicator* parent, nccl::Communicator** part, nccl::Config* config) mutable {
    return call(parent, excluded.data(), static_cast<int>(excluded.size()), part, config, flags);
  };
  // Looks at the child's group: this group may have failed.
  Status shrunk = whole_->make_child(Connection::Purpose::kShrinking, "CommShrink", made, child.settings(), make,
                                     child.check_until(deadline));
  if (!shrunk.ok()) whole_->end(Connection::Rest::kNone);  // the call may still be in NCCL
  return shrunk;
}

Result<std::shared_ptr<RegisteredMemory>> NcclBackend::register_memory(void* memory, std::size_t bytes,
                                                                       Deadline deadline) {
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  if (Status connected = connect_whole(deadline); !connected.ok())
    return group_.state().fail(connected.with_context(group_.where("device_window")));
  if (registry_ == nullptr) registry_ = std::make_shared<nccl::Registry>(whole_);
  return nccl::register_memory({.group = group_,
                                .library = library(),
                                .runtime = runtime_,
                                .device = device_,
                                .registry = registry_,
                                .check = check_until(deadline),
                                .deadline = deadline},
                               memory, bytes);
}

Status NcclBackend::asynchronous_error() {
  if (whole_ != nullptr) ACCORD_RETURN_IF_ERROR(whole_->asynchronous_error());
  for (const auto& [peer, pair] : pairs_) {
    if (pair.connection == nullptr) continue;
    if (Status status = pair.connection->asynchronous_error(); !status.ok())
      return Status(status.code(), status.message(), {peer});
  }
  return {};
}

void NcclBackend::interrupt() {
  const std::lock_guard lock(connections_mutex_);
  if (!std::exchange(aborted_, true)) aborted_by_ = Deadline::in(kAbortTimeout);
  if (whole_ != nullptr) whole_->end(Connection::Rest::kRevoked);
  for (const auto& [peer, pair] : pairs_)
    if (pair.connection != nullptr) pair.connection->end(Connection::Rest::kNone);
}

void NcclBackend::abort() {
  interrupt();
  for (const auto& one : connections()) one->await_end(aborted_by_);
}

}  // namespace accord::comm
