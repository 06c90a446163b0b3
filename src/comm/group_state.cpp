// Failures spread in two ways. Every rank sees a dead peer by itself (progress.hpp), and a rank that fails writes a
// notice into each peer's window and rings its alarm word, which every call and every slow wait checks. A rank that
// learns of a failure from a notice passes it on before its own call returns: peers that read its buffers must know
// by then that the buffers may have changed.
#include "comm/group_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "base/config.hpp"
#include "exec/domain.hpp"

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

}  // namespace

GroupState::GroupState(const Membership& members, const std::string& name, flight::Recorder& recorder)
    : members_(members),
      name_(name),
      recorder_(recorder),
      alarm_word_(Domain::word(members.endpoint->window().data() + WindowLayout::alarm())) {}

bool GroupState::has_failed() const {
  const Status first = status();
  return !first.ok() && first.code() != StatusCode::kClosed;
}

bool GroupState::close() {
  const std::lock_guard lock(mutex_);
  if (value() == CommunicatorState::kClosed) return false;
  if (value() == CommunicatorState::kReady)
    first_failure_ = Status(StatusCode::kClosed, fmt::format("group \"{}\" was closed on this rank", name_));
  value_.store(CommunicatorState::kClosed, std::memory_order_seq_cst);
  recorder_.set_state(CommunicatorState::kClosed);
  return true;
}

Status GroupState::status() const {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

Status GroupState::check(std::string_view context) {
  {
    const std::lock_guard lock(mutex_);
    adopt_notice();
    if (value() == CommunicatorState::kReady) return {};
  }
  return examine_alarm(context);
}

Status GroupState::examine_alarm(std::string_view context) {
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

void GroupState::dump_again() {
  {
    const std::lock_guard lock(mutex_);
    if (value() != CommunicatorState::kFailed || config()->dump_directory.empty()) return;
  }
  dump_.wait();
  dump_.start(recorder_.read(), config()->dump_directory);
}

void GroupState::set_failure(const Status& failure) {
  first_failure_ = failure;
  recorder_.set_failure(failure);
  recorder_.set_state(CommunicatorState::kFailed);
  value_.store(CommunicatorState::kFailed, std::memory_order_release);
  if (!config()->dump_directory.empty()) dump_.start(recorder_.read(), config()->dump_directory);
}

void GroupState::adopt_notice() {
  if (value() != CommunicatorState::kReady || alarm_word_.load(std::memory_order_acquire) == 0) return;
  set_failure(read_notices().value_or(
      Status(StatusCode::kInternal, fmt::format("a peer reported a failure of group \"{}\" without a reason", name_))));
  notify_peers(first_failure_, Notice::kPassedOn);
}

Status GroupState::fail(const Status& failure) {
  Status first = note_failure(failure);
  dump_.wait();
  return first;
}

Status GroupState::note_failure(const Status& failure) {
  const std::lock_guard lock(mutex_);
  adopt_notice();
  if (value() != CommunicatorState::kReady) return first_failure_;
  set_failure(failure);
  notify_peers(failure, Notice::kOwn);
  return failure;
}

void GroupState::notify_peers(const Status& failure, std::uint64_t source) {
  Notice notice;
  notice.code = static_cast<std::uint32_t>(failure.code());
  notice.rank_count =
      static_cast<std::uint32_t>(std::min<std::size_t>(failure.ranks().size(), std::size(notice.ranks)));
  std::copy_n(failure.ranks().begin(), notice.rank_count, notice.ranks);
  failure.message().copy(notice.message, sizeof notice.message - 1);
  const std::span<const std::byte> body = std::as_bytes(std::span(&notice, 1)).subspan(sizeof notice.source);
  for (const auto& link : members_.links) {
    if (link == nullptr || link->peer_state() != transport::PeerState::kAlive) continue;
    const std::size_t offset = WindowLayout::notice(members_.rank);
    // A peer that cannot be reached learns of the failure when this rank leaves.
    if (!link->put(body, offset + sizeof notice.source).ok() || !link->signal(offset, source).ok()) continue;
    (void)link->signal(WindowLayout::alarm(), 1);
  }
}

std::optional<Status> GroupState::read_notices() const {
  std::optional<Status> passed_on;
  for (const Rank from : members_.topology.ranks()) {
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

void GroupState::on_peer_change(Rank peer) {
  if (this->peer(peer) != transport::PeerState::kLost) return;
  {
    const std::lock_guard lock(mutex_);
    note_gone(peer);
  }
  (void)note_failure(Status(
      StatusCode::kPeerLost,
      fmt::format("rank {} of group \"{}\" (process {} on its host) died or exited without closing its communicator",
                  peer, name_, members_.topology.place(peer).process),
      {peer}));
}

std::vector<Rank> GroupState::gone() {
  const std::lock_guard lock(mutex_);
  for (const Rank r : members_.topology.ranks())
    if (r != members_.rank && peer(r) != transport::PeerState::kAlive) note_gone(r);
  return gone_;
}

void GroupState::note_gone(Rank rank) {
  if (std::find(gone_.begin(), gone_.end(), rank) == gone_.end()) gone_.push_back(rank);
}

}  // namespace accord::comm
