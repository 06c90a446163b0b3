// Failures spread in two ways. Every rank sees a dead peer by itself (progress.hpp), and a rank that fails writes a
// notice into each peer's window and rings its alarm word, which every call and every slow wait checks. A rank that
// learns of a failure from a notice passes it on before its own call returns: peers that read its buffers must know
// by then that the buffers may have changed.
#include "comm/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/config.hpp"
#include "base/text.hpp"

namespace accord::comm {
namespace {

using exec::Domain;
using exec::WindowLayout;

/// Left by a failed rank in its peers' windows; `source` is stored last.
struct Notice {
  enum Source : std::uint64_t { kNone, kOwn, kPassedOn };
  std::uint64_t source = kNone;
  std::uint32_t code = 0;
  std::uint32_t rank_count = 0;
  std::int32_t ranks[8] = {};
  char message[448] = {};
};
static_assert(sizeof(Notice) <= WindowLayout::kNoticeBytes);

constexpr std::int32_t kInternalTag = -1;  // users' tags are not negative

exec::RequestRecord aside(std::size_t bytes) {
  return {.collective = Collective::kSendRecv, .dtype = DType::kUInt8, .root = kInternalTag, .count = bytes};
}

}  // namespace

Group::Group(Membership membership, GroupOptions options, std::unique_ptr<flight::Recorder> recorder)
    : members_(std::move(membership)),
      options_(std::move(options)),
      alarm_word_(Domain::word(members_.endpoint->window().data() + WindowLayout::alarm())),
      fork_generation_(ProgressThread::fork_generation()),
      announcements_(members_),
      recorder_(std::move(recorder)) {
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

Group::~Group() { close(); }

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
  const std::lock_guard lock(mutex_);
  if (state() == CommunicatorState::kClosed) return first_failure_;
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

Status Group::status() const {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

Status Group::inherited() const {
  return Status(StatusCode::kWrongState,
                fmt::format("group \"{}\" belongs to the process that this one was forked from; create a "
                            "communicator of its own in the child",
                            options_.name));
}

Status Group::check_for_failure(std::string_view context) {
  {
    const std::lock_guard lock(mutex_);
    adopt_notice();
    if (state() == CommunicatorState::kReady) return {};
  }
  return examine_alarm(context);
}

Status Group::examine_alarm(std::string_view context) {
  Status first;
  {
    const std::lock_guard lock(mutex_);
    adopt_notice();
    first = first_failure_;
  }
  dump_.wait();
  // For a call like the one that failed, the context would appear twice.
  return first.message().find(context) == std::string::npos ? first.with_context(context) : first;
}

void Group::dump_again() {
  {
    const std::lock_guard lock(mutex_);
    if (state() != CommunicatorState::kFailed || config()->dump_directory.empty()) return;
  }
  dump_.wait();
  dump_.start(recorder_->read(), config()->dump_directory);
}

void Group::set_failure(const Status& failure) {
  first_failure_ = failure;
  recorder_->set_failure(failure);
  recorder_->set_state(CommunicatorState::kFailed);
  state_.store(CommunicatorState::kFailed, std::memory_order_release);
  if (!config()->dump_directory.empty()) dump_.start(recorder_->read(), config()->dump_directory);
}

void Group::adopt_notice() {
  if (state() != CommunicatorState::kReady || alarm_word_.load(std::memory_order_acquire) == 0) return;
  set_failure(read_notices().value_or(
      Status(StatusCode::kInternal,
             fmt::format("a peer reported a failure of group \"{}\" without a reason", options_.name))));
  notify_peers(first_failure_, Notice::kPassedOn);
}

Status Group::fail(const Status& failure) {
  Status first = note_failure(failure);
  dump_.wait();
  return first;
}

Status Group::note_failure(const Status& failure) {
  const std::lock_guard lock(mutex_);
  adopt_notice();
  if (state() != CommunicatorState::kReady) return first_failure_;
  set_failure(failure);
  notify_peers(failure, Notice::kOwn);
  return failure;
}

void Group::notify_peers(const Status& failure, std::uint64_t source) {
  Notice notice;
  notice.code = static_cast<std::uint32_t>(failure.code());
  notice.rank_count =
      static_cast<std::uint32_t>(std::min<std::size_t>(failure.ranks().size(), std::size(notice.ranks)));
  std::copy_n(failure.ranks().begin(), notice.rank_count, notice.ranks);
  failure.message().copy(notice.message, sizeof notice.message - 1);
  const std::span<const std::byte> body = std::as_bytes(std::span(&notice, 1)).subspan(sizeof notice.source);
  for (const auto& link : members_.links) {
    if (link == nullptr || link->peer_state() != transport::PeerState::kAlive) continue;
    const std::size_t offset = WindowLayout::notice(rank());
    // A peer that cannot be reached learns of the failure when this rank leaves.
    if (!link->put(body, offset + sizeof notice.source).ok() || !link->signal(offset, source).ok()) continue;
    (void)link->signal(WindowLayout::alarm(), 1);
  }
}

std::optional<Status> Group::read_notices() const {
  std::optional<Status> passed_on;
  for (const Rank from : topology().ranks()) {
    std::byte* address = members_.endpoint->window().data() + WindowLayout::notice(from);
    const std::uint64_t source = Domain::word(address).load(std::memory_order_acquire);
    if (source == Notice::kNone || (source == Notice::kPassedOn && passed_on)) continue;
    Notice notice;
    std::memcpy(&notice, address, sizeof notice);
    const std::uint32_t count = std::min<std::uint32_t>(notice.rank_count, std::size(notice.ranks));
    notice.message[sizeof notice.message - 1] = '\0';
    Status reported(static_cast<StatusCode>(notice.code), fmt::format("rank {} reported: {}", from, notice.message),
                    std::vector<Rank>(notice.ranks, notice.ranks + count));
    if (source == Notice::kOwn) return reported;
    passed_on = std::move(reported);
  }
  return passed_on;
}

void Group::on_peer_change(Rank peer) {
  if (peer_state(peer) != transport::PeerState::kLost) return;
  {
    const std::lock_guard lock(mutex_);
    note_gone(peer);
  }
  (void)note_failure(Status(
      StatusCode::kPeerLost,
      fmt::format("rank {} of group \"{}\" (process {} on its host) died or exited without closing its communicator",
                  peer, options_.name, topology().place(peer).process),
      {peer}));
}

std::vector<Rank> Group::gone() {
  const auto open = keep_open("gone");
  if (!open.ok()) return {};
  const std::lock_guard lock(mutex_);
  for (const Rank r : topology().ranks())
    if (r != rank() && peer_state(r) != transport::PeerState::kAlive) note_gone(r);
  return gone_;
}

void Group::note_gone(Rank rank) {
  if (std::find(gone_.begin(), gone_.end(), rank) == gone_.end()) gone_.push_back(rank);
}

void Group::abort(std::string_view reason) {
  if (is_inherited()) return;  // the peers would attribute it to the parent
  (void)fail(Status(StatusCode::kAborted,
                    fmt::format("rank {} aborted group \"{}\": {}", rank(), options_.name, reason), {rank()}));
}

Result<std::shared_lock<std::shared_mutex>> Group::keep_open(std::string_view operation) {
  ACCORD_RETURN_IF_ERROR(used_after_fork());
  std::shared_lock open(windows_in_use_);
  if (state() == CommunicatorState::kClosed) return status().with_context(where(operation));
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
  if (state() == CommunicatorState::kReady) device_channel_->wait_until_idle();
  {
    const std::lock_guard lock(mutex_);
    if (state() == CommunicatorState::kClosed) return;
    if (state() == CommunicatorState::kReady)
      first_failure_ = Status(StatusCode::kClosed, fmt::format("group \"{}\" was closed on this rank", options_.name));
    state_.store(CommunicatorState::kClosed, std::memory_order_seq_cst);
    recorder_->set_state(CommunicatorState::kClosed);
  }
  Turns::fence();
  // Running operations end by themselves now, and an operation that begins sees the state before it touches the
  // window. After that this rank does not use the window, and peers may be notified.
  const auto busy = [](const std::unique_ptr<Channel>& channel) { return channel != nullptr && !channel->idle(); };
  while (busy(group_channel_) || std::any_of(pair_channels_.begin(), pair_channels_.end(), busy))
    std::this_thread::yield();
  device_channel_->close();
  const std::lock_guard last(windows_in_use_);  // shrink, split and grow see the state, too
  ProgressThread::instance().forget(*this);
  members_.endpoint.reset();
}

}  // namespace accord::comm
