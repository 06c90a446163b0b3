// Calls on host memory go to a channel: one for the calls of the whole group, and two for each peer, one for each
// direction of messages, which are created on first use. Calls on device memory go to the DeviceChannel.
#include "comm/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/text.hpp"

namespace accord::comm {
namespace {

using exec::Domain;
using exec::WindowLayout;

constexpr std::int32_t kInternalTag = -1;  // users' tags are not negative

exec::RequestRecord aside(std::size_t bytes) {
  return {.collective = Collective::kSendRecv, .dtype = DType::kUInt8, .root = kInternalTag, .count = bytes};
}

}  // namespace

Group::Group(Membership membership, GroupOptions options, std::unique_ptr<flight::Recorder> recorder)
    : members_(std::move(membership)),
      options_(std::move(options)),
      fork_generation_(ProgressThread::fork_generation()),
      announcements_(members_),
      recorder_(std::move(recorder)),
      state_(members_, options_.name, *recorder_) {
  const WindowLayout& layout = members_.layout;
  std::vector<Part> parts;
  for (const Rank r : topology().ranks())
    parts.push_back({.rank = r,
                     .region = layout.group_region(),
                     .mirror_here = layout.group_mirror(r),
                     .mirror_there = layout.group_mirror(rank())});
  group_channel_ = std::make_unique<Channel>(*this, domain_of(layout.group(), parts), topology(), topology().ranks(),
                                             recorder_->collectives());
  pair_channels_.resize(2 * static_cast<std::size_t>(size()));
  device_channel_ = std::make_unique<DeviceChannel>(*this);
}

Result<std::shared_ptr<Group>> Group::create(Membership membership, GroupOptions options) {
  ACCORD_ASSIGN_OR_RETURN(ProgressThread* const progress, ProgressThread::start());
  const flight::Identity identity{
      .id = membership.id, .name = options.name, .rank = membership.rank, .topology = membership.topology};
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<flight::Recorder> recorder,
                          flight::Recorder::create(identity, options.hints.recorder_size));
  std::shared_ptr<Group> group(new Group(std::move(membership), std::move(options), std::move(recorder)));
  ACCORD_RETURN_IF_ERROR(progress->watch(group));
  // A separate reference count, so that the last handle closes the group on the thread that releases it: the progress
  // thread may hold the group itself for a moment longer, and a process that ends then would seem to have died.
  std::shared_ptr<Group> handle(group.get(), [own = group](Group*) mutable {
    own->close();
    own.reset();  // not at the destruction of this function object, which handle_ delays
  });
  group->handle_ = handle;
  return handle;
}

Group::~Group() {
  close();
  // In a forked child, its end would close the parent's channel: in the shared window, and in NCCL.
  if (is_inherited()) (void)device_channel_.release();
}

std::string Group::where(std::string_view operation) const {
  return fmt::format("{} on group \"{}\" ({})", operation, options_.name, ranks_text(topology().ranks()));
}

Status Group::run(const Call& call, const CallOptions& options) {
  if (DeviceChannel::serves(call)) [[unlikely]] {
    ACCORD_RETURN_IF_ERROR(used_after_fork());
    ACCORD_RETURN_IF_ERROR(check(call));
    return device_channel_->run(std::span(&call, 1), options);
  }
  if (call.direction == Direction::kNone) [[likely]] {
    ACCORD_RETURN_IF_ERROR(used_after_fork());
    return group_channel_->run(call, options);
  }
  ACCORD_ASSIGN_OR_RETURN(Channel* const channel, channel_for(call));
  return with_operation(call, options, [&](const Operation& operation) { return channel->run(operation); });
}

Status Group::run(const Call& call, const exec::PlanEpilogue& epilogue, const CallOptions& options) {
  ACCORD_RETURN_IF_ERROR(used_after_fork());
  ACCORD_RETURN_IF_ERROR(check(call));
  return device_channel_->run(std::span(&call, 1), options, &epilogue);
}

Work Group::start(const Call& call, const CallOptions& options) {
  if (DeviceChannel::serves(call)) [[unlikely]] {
    if (Status status = used_after_fork(); !status.ok()) return Work(std::move(status));
    if (Status status = check(call); !status.ok()) return Work(std::move(status));
    return Work(device_channel_->start(std::span(&call, 1), options));
  }
  Result<Channel*> channel = channel_for(call);
  if (!channel.ok()) return Work(channel.status());
  return with_operation(call, options, [&](const Operation& operation) { return Work((*channel)->start(operation)); });
}

std::unique_ptr<const OwnedOperation> Group::operation_of(const Call& call, const CallOptions& options) const {
  return with_operation(call, options,
                        [](const Operation& operation) { return std::make_unique<const OwnedOperation>(operation); });
}

Operation Group::operation_of(const Call& call, const CallOptions& options, const plan::Extent* extent) const {
  return {.record = record_of(call, rank(), size()),
          .input = call.input.data,
          .output = call.output.data,
          .factor = factor_of(call),
          .timeout = options.timeout.value_or(options_.timeout),
          .extent = extent};
}

Status Group::check(const Call& call) const {
  Status wrong = check_call(call, rank(), size());
  return wrong.ok() ? wrong : wrong.with_context(where(name_of(call)));
}

Result<Channel*> Group::channel_for(const Call& call) {
  ACCORD_RETURN_IF_ERROR(used_after_fork());
  ACCORD_RETURN_IF_ERROR(check(call));
  if (DeviceChannel::serves(call))
    return Status(StatusCode::kUnsupported, where(name_of(call)) + ": this call needs CPU memory");
  if (call.direction == Direction::kNone) return group_channel_.get();
  return pair_channel(call.peer, call.direction);
}

Status Group::send_internal(std::span<const std::byte> bytes, Rank peer, Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(Channel* const channel, pair_channel(peer, Direction::kSend));
  return channel->run({.record = aside(bytes.size()), .input = bytes.data(), .timeout = deadline.remaining()});
}

Status Group::receive_internal(std::span<std::byte> bytes, Rank peer, Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(Channel* const channel, pair_channel(peer, Direction::kReceive));
  return channel->run({.record = aside(bytes.size()), .output = bytes.data(), .timeout = deadline.remaining()});
}

Result<Channel*> Group::pair_channel(Rank peer, Direction direction) {
  const bool sends = direction == Direction::kSend;
  const std::lock_guard lock(pairs_mutex_);
  if (state_.value() == CommunicatorState::kClosed) return state_.status();
  std::unique_ptr<Channel>& channel = pair_channels_[2 * static_cast<std::size_t>(peer) + (sends ? 0 : 1)];
  if (channel != nullptr) return channel.get();
  const WindowLayout& layout = members_.layout;
  const Part mine{.rank = rank(), .region = sends ? layout.region_to(peer) : layout.region_from(peer)};
  const Part its{.rank = peer,
                 .region = sends ? layout.region_from(rank()) : layout.region_to(rank()),
                 .mirror_here = sends ? layout.mirror_to(peer) : layout.mirror_from(peer),
                 .mirror_there = sends ? layout.mirror_from(rank()) : layout.mirror_to(rank())};
  std::vector<Rank> members = sends ? std::vector{rank(), peer} : std::vector{peer, rank()};
  topology::Topology pair({topology().place(members[0]), topology().place(members[1])});
  const std::vector<Part> parts = sends ? std::vector{mine, its} : std::vector{its, mine};
  channel = std::make_unique<Channel>(*this, domain_of(layout.pair(), parts), std::move(pair), std::move(members),
                                      recorder_->messages(peer, direction), direction);
  return channel.get();
}

void Group::remove_window(int number) {
  windows_.remove(number);
  if (!is_inherited()) group_channel_->forget_windows();
}

exec::Domain Group::domain_of(const exec::DomainLayout& layout, const std::vector<Part>& parts) const {
  std::byte* const own_window = members_.endpoint->window().data();
  int me = 0;
  bool any_remote = false;
  std::vector<std::byte*> regions;
  std::vector<exec::RemoteMember> remotes;
  for (const Part& part : parts) {
    const auto& link = members_.links[part.rank];
    if (link == nullptr) me = static_cast<int>(regions.size());
    std::byte* const window = link == nullptr ? own_window : link->mapped();
    exec::RemoteMember& remote = remotes.emplace_back();
    if (window == nullptr) remote = {link->remote(), part.region, part.mirror_there};
    any_remote |= window == nullptr;
    regions.push_back(window == nullptr ? own_window + part.mirror_here : window + part.region);
  }
  if (!any_remote) remotes.clear();
  return Domain(layout, me, std::move(regions), std::move(remotes));
}

Status Group::inherited() const {
  return Status(StatusCode::kWrongState,
                fmt::format("group \"{}\" belongs to the process that this one was forked from; create a "
                            "communicator of its own in the child",
                            options_.name));
}

void Group::abort(std::string_view reason) {
  if (is_inherited()) return;  // the peers would attribute it to the parent
  (void)state_.fail(Status(StatusCode::kAborted,
                           fmt::format("rank {} aborted group \"{}\": {}", rank(), options_.name, reason), {rank()}));
  std::vector<std::weak_ptr<MadeFromGroup>> all_made;
  {
    const std::lock_guard lock(made_mutex_);
    abort_reason_ = reason;
    all_made.swap(made_);
  }
  for (const std::weak_ptr<MadeFromGroup>& entry : all_made)
    if (const std::shared_ptr<MadeFromGroup> made = entry.lock()) made->abort(reason);
}

void Group::add_made(const std::weak_ptr<MadeFromGroup>& made) {
  std::optional<std::string> abort_reason;
  {
    const std::lock_guard lock(made_mutex_);
    if (made_.size() == made_.capacity()) std::erase_if(made_, [](const auto& one) { return one.expired(); });
    made_.push_back(made);
    abort_reason = abort_reason_;
  }
  if (!abort_reason) return;
  if (const std::shared_ptr<MadeFromGroup> now = made.lock()) now->abort(*abort_reason);
}

std::vector<Rank> Group::gone() {
  const auto open = keep_open("gone");
  return open.ok() ? state_.gone() : std::vector<Rank>();
}

Result<std::shared_lock<std::shared_mutex>> Group::keep_open(std::string_view operation) {
  ACCORD_RETURN_IF_ERROR(used_after_fork());
  std::shared_lock open(windows_in_use_);
  if (state_.value() == CommunicatorState::kClosed) return state_.status().with_context(where(operation));
  return open;
}

Result<std::shared_lock<std::shared_mutex>> Group::begin_shrink() {
  ACCORD_ASSIGN_OR_RETURN(std::shared_lock<std::shared_mutex> open, keep_open("shrink"));
  if (shrunk_.exchange(true))
    return Status(StatusCode::kWrongState, fmt::format("{}: the group has already been shrunk", where("shrink")));
  return open;
}

void Group::close() {
  if (is_inherited()) return;  // the parent continues; its threads and locks do not exist here
  if (state_.value() == CommunicatorState::kReady) device_channel_->wait_until_idle();
  if (!state_.close()) return;
  { const std::lock_guard created(pairs_mutex_); }  // from here on no channel is created
  Turns::fence();
  // Running operations end by themselves now, and an operation that begins sees the state before it touches the
  // window. After that this rank does not use the window, and peers may be notified.
  const auto busy = [](const std::unique_ptr<Channel>& channel) { return channel != nullptr && !channel->idle(); };
  while (busy(group_channel_) || std::any_of(pair_channels_.begin(), pair_channels_.end(), busy))
    std::this_thread::yield();
  device_channel_->close();
  const std::lock_guard last(windows_in_use_);  // shrink, split and grow see the state, too
  formation_point_.close();
  ProgressThread::instance().forget(*this);
  members_.endpoint.reset();
}

}  // namespace accord::comm
