// Resources that a channel gets from elsewhere or gives to others: a communicator that was lent, parts of the group,
// the group that remains after a failure, memory registered on all ranks.
#include <fmt/format.h>

#include "comm/device/device_backends.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/group.hpp"
#include "comm/nccl/library.hpp"

namespace accord::comm {

Status DeviceChannel::lend(nccl::Communicator* communicator) {
  const auto failed = [&](StatusCode code, std::string_view what) {
    return Status(code, fmt::format("lend_nccl to group \"{}\": {}", group_.options().name, what));
  };
  if (communicator == nullptr) return failed(StatusCode::kInvalidArgument, "the communicator is null");
  const Result<const nccl::Library*> library = nccl::library();
  if (!library.ok()) return library.status();
  const nccl::Functions& call = (*library)->call;
  int size = 0, rank = 0, device = 0;
  if (const int code = call.CommCount(communicator, &size); code != nccl::kSuccess)
    return (*library)->failure("CommCount", code);
  if (const int code = call.CommUserRank(communicator, &rank); code != nccl::kSuccess)
    return (*library)->failure("CommUserRank", code);
  if (const int code = call.CommCuDevice(communicator, &device); code != nccl::kSuccess)
    return (*library)->failure("CommCuDevice", code);
  if (size != group_.size() || rank != group_.rank())
    return failed(StatusCode::kInvalidArgument,
                  fmt::format("the communicator is rank {} of {}, this rank is rank {} of {}", rank, size,
                              group_.rank(), group_.size()));
  const std::lock_guard lock(mutex_);
  if (closed_) return group_.state().status();
  if (backends_ != nullptr) return failed(StatusCode::kWrongState, "the group has already made calls on a GPU");
  lent_ = communicator;
  return open({DeviceType::kCuda, static_cast<std::int16_t>(device)});
}

bool DeviceChannel::can_split() {
  const std::lock_guard lock(mutex_);
  return backends_ != nullptr && backends_->can_split();
}

Status DeviceChannel::split(int color, int key, Group* child, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (backends_ == nullptr) return group_.state().status();  // closed since can_split()
  // Fails the group, since the other ranks wait in NCCL for this one.
  const auto failed = [&](const Status& why) { return group_.state().fail(why.with_context(group_.where("split"))); };
  DeviceBackends* its = nullptr;
  if (child != nullptr) {
    DeviceChannel& channel = child->device_channel();
    const std::lock_guard child_lock(channel.mutex_);  // no other thread has it yet
    if (const Status opened = channel.open(device_); !opened.ok()) return failed(opened);
    its = channel.backends_.get();
  }
  const Status split = backends_->split(color, key, its, deadline);
  return split.ok() ? split : failed(split);
}

bool DeviceChannel::can_shrink() {
  const std::lock_guard lock(mutex_);
  const std::lock_guard nobody_aborts(abort_mutex_);  // a work may have ended while calls are still being aborted
  return backends_ != nullptr && backends_->can_shrink();
}

void DeviceChannel::shrink(std::span<const Rank> lost, Group& child, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  DeviceChannel& its = child.device_channel();
  const std::lock_guard child_lock(its.mutex_);  // no other thread has it yet
  Status shrunk = its.open(device_);
  // Ranks that wait in vain for one that cannot shrink still have time to learn of it.
  const Deadline soon = Deadline::in(deadline.remaining() / 2);
  if (shrunk.ok() && backends_ == nullptr) shrunk = group_.state().status();  // closed since can_shrink()
  if (shrunk.ok()) shrunk = backends_->shrink(lost, *its.backends_, soon);
  std::int64_t has_shrunk = shrunk.ok() ? 1 : 0;
  const ConstBuffer mine(&has_shrunk, 1, DType::kInt64);
  const Status agreed = child.run(Call::all_reduce(mine, Buffer{&has_shrunk, 1, DType::kInt64}, ReduceOp::kMin),
                                  {.timeout = deadline.remaining()});
  if ((agreed.ok() && has_shrunk == 1) || its.backends_ == nullptr) return;
  its.backends_->abort();
  its.set_backends(std::make_unique<DeviceBackends>(child, *its.runtime_, its.device_, its.stop_, nullptr));
}

Result<std::shared_ptr<RegisteredMemory>> DeviceChannel::register_memory(void* memory, std::size_t bytes, Device device,
                                                                         Duration timeout) {
  const Deadline deadline = Deadline::in(timeout);
  const std::string here = group_.where(fmt::format("device_window of {} bytes", bytes));
  const auto failed = [&](const Status& status) { return status.with_context(here); };
  if (bytes == 0) return failed(Status(StatusCode::kInvalidArgument, "there is nothing to register"));
  const std::lock_guard lock(mutex_);
  if (closed_) return group_.state().status();
  if (!group_.state().healthy()) return group_.state().examine_alarm(here);
  if (Status opened = open(device); !opened.ok()) return failed(opened);
  const Call of_all = Call::broadcast(Buffer{memory, 0, DType::kUInt8, device}, 0);
  if (Status agreed = backends_->agree(std::span(&of_all, 1), deadline); !agreed.ok()) return failed(agreed);
  Result<std::shared_ptr<RegisteredMemory>> made = backends_->register_memory(memory, bytes, deadline);
  if (made.ok()) return made;
  if (group_.state().has_failed()) abort_calls(group_.state().status());
  return failed(made.status());
}

}  // namespace accord::comm
