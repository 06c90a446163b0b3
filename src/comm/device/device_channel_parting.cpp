// Memory that peers in other processes have opened, or that a switch reaches, must not be released while their
// kernels use it. After a call is over on one rank, kernels of other ranks may still read there, or signal that they
// are done. So each rank publishes in its ledger the number of the call up to which nothing of it runs any more. A
// rank that leaves publishes that, and waits until the others have got that far. A rank that calls first publishes
// its call and then looks for ranks that have left, so that at least one of the two sees the other. Once a group has
// failed, its ranks make no further calls. Launches of graphs are not tracked.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "base/wait.hpp"
#include "comm/device/device_backends.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/group.hpp"

namespace accord::comm {
namespace {

constexpr std::chrono::seconds kQuiesceTimeout(5);

/// Whether a peer has died and its kernels still run, until the operating system has released its devices.
bool is_being_torn_down(const transport::Link& peer) {
  pollfd ended = {peer.liveness_fd(), POLLIN, 0};
  return peer.peer_state() == transport::PeerState::kLost && ended.fd >= 0 && ::poll(&ended, 1, 0) != 1;
}

}  // namespace

Status DeviceChannel::note(const exec::RequestRecord& record, UnderWay& one) {
  DeviceLedger* const mine = ledger_of(group_.rank());
  mine->add(record);
  one.number = mine->count();
  for (const Rank rank : group_.topology().ranks()) {
    const DeviceLedger* const theirs = ledger_of(rank);
    if (theirs == nullptr || !theirs->has_left() || (theirs->count() >= one.number && group_.state().healthy()))
      continue;
    return Status(StatusCode::kPeerLost,
                  fmt::format("rank {} has closed its communicator and takes part in no further calls", rank), {rank});
  }
  return {};
}

void DeviceChannel::note_end(std::uint64_t number) {
  const std::lock_guard lock(under_way_mutex_);
  last_ended_ = std::max(last_ended_, number);
  publish_completed();
}

bool DeviceChannel::is_any_ending() {
  const std::lock_guard lock(under_way_mutex_);
  return !ending_.empty();
}

void DeviceChannel::publish_completed() {
  std::erase_if(ending_, [&](const std::shared_ptr<DeviceEvent>& end) {
    const Result<bool> over = runtime_->has_happened(end->get());
    return !over.ok() || *over;
  });
  const bool is_any = std::ranges::any_of(under_way_, [](const UnderWay& one) { return one.number > 0; });
  if (!is_any && ending_.empty() && !ledgers_.empty()) ledger_of(group_.rank())->set_over(last_ended_);
}

bool DeviceChannel::loses_memory_of_this_rank(Rank rank) const {
  const topology::Topology& topology = group_.topology();
  const bool is_of_this_process = topology::is_one_process(topology.place(rank), topology.place(group_.rank()));
  const bool loses_memory = !is_of_this_process || (rank != group_.rank() && backends_->closing_unmaps_all());
  return ledger_of(rank) != nullptr && loses_memory;
}

bool DeviceChannel::may_use_memory(Rank rank) const {
  const DeviceLedger &mine = *ledger_of(group_.rank()), *const its = ledger_of(rank);
  if (rank == group_.rank()) return mine.over() < mine.count();
  if (!loses_memory_of_this_rank(rank)) return false;
  if (group_.state().peer(rank) != transport::PeerState::kAlive) return is_being_torn_down(*group_.links()[rank]);
  const std::uint64_t over = its->over();
  const bool makes_no_more_calls = group_.state().has_failed() || its->has_left();
  return over < its->count() || (!makes_no_more_calls && over < mine.count());
}

bool DeviceChannel::quiesce_peers() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || backends_ == nullptr) return has_quiesced_;
    if (group_.state().has_failed()) abort_calls(group_.state().status());
    ledger_of(group_.rank())->leave();
  }
  const auto is_any_left = [this] {
    const std::lock_guard lock(mutex_);
    const auto ranks = group_.topology().ranks();
    return !closed_ && std::ranges::any_of(ranks, [this](Rank rank) { return loses_memory_of_this_rank(rank); }) &&
           std::ranges::any_of(ranks, [this](Rank rank) { return may_use_memory(rank); });
  };
  const Deadline deadline = Deadline::in(kQuiesceTimeout);
  Waiter waiter(WaitPolicy::kYield);
  (void)end_works(Ending::kOver);
  while (is_any_left()) {
    if (deadline.passed()) return false;
    (void)waiter.pause();
    (void)end_works(Ending::kOver);
  }
  has_quiesced_ = true;
  return true;
}

}  // namespace accord::comm
