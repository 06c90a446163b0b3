// How calls in streams fail. Whether they have to end is seen in memory alone: in the ledgers, in the state of peers,
// in deadlines, and in the words that kernels write. So a thread that never calls the device finds it out, and makes
// kernels stop waiting; other threads may be inside CUDA for as long as these kernels run.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "comm/device/device_backends.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/group.hpp"

namespace accord::comm {
namespace {

/// A message may still be on its way from a peer for which it is over, and which has left since.
constexpr std::chrono::seconds kGrace(1);
/// For a collective whose kernels may have met those of a graph of the peer's, which the peer's ledger does not
/// count.
constexpr std::chrono::milliseconds kGraceOfCollectives(200);
/// Calls in streams that are examined each time; later ones wait for these.
constexpr std::size_t kExamined = 64;
/// For a thread that is still in a call at its deadline. Where it can, it returns by itself, with an error that says
/// more.
constexpr std::chrono::milliseconds kGraceOfCaller(200);

}  // namespace

Status DeviceChannel::note(const exec::RequestRecord& record, std::optional<Stream> stream, UnderWay& one) {
  std::uint64_t mine_in = 0;
  if (stream) {
    ACCORD_ASSIGN_OR_RETURN(mine_in, runtime_->stream_id(device_, *stream));
  }
  DeviceLedger* const mine = ledger_of(group_.rank());
  mine->add(record, mine_in);
  one.number = mine->count();
  const topology::Topology& topology = group_.topology();
  for (const Rank rank : topology.ranks()) {
    const DeviceLedger* const theirs = ledger_of(rank);
    if (theirs == nullptr || rank == group_.rank()) continue;
    if (theirs->has_left() && (theirs->count() < one.number || !group_.state().healthy()))
      return Status(StatusCode::kPeerLost,
                    fmt::format("rank {} has closed its communicator and takes part in no further calls", rank),
                    {rank});
    if (mine_in != 0 && theirs->count() >= one.number && theirs->stream_of(one.number) == mine_in &&
        topology::is_one_process(topology.place(rank), topology.place(group_.rank())))
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("ranks {} and {} put it into the same stream of {}, where the second waits for the "
                                "first, which waits for the second; give each rank a stream of its own",
                                std::min(rank, group_.rank()), std::max(rank, group_.rank()), to_string(device_)));
  }
  return {};
}

Status DeviceChannel::mismatch_with(Rank rank, const DeviceLedger& theirs, const UnderWay& one) const {
  const DeviceLedger& ours = *ledger_of(group_.rank());
  if (ours.has_captured() || theirs.has_captured()) return {};
  const auto mine = ours.record_of(one.number), its = theirs.record_of(one.number);
  if (!mine || !its || mine == its) return {};
  if (one.text == nullptr)
    return mismatch({.mine = *mine, .theirs = *its}, group_.where(exec::to_string(*mine)), group_.rank(), rank);
  if (one.alike(*mine, *its)) return {};
  return Status(StatusCode::kMismatch,
                fmt::format("{}: rank {} called {}, rank {} called {}", where(one), rank, one.text(*its), group_.rank(),
                            one.text(*mine)),
                {rank});
}

Status DeviceChannel::mismatch_of(const UnderWay& one) const {
  if (one.number == 0 || ledger_of(group_.rank()) == nullptr) return {};
  for (const Rank rank : group_.topology().ranks()) {
    const DeviceLedger* const theirs = rank == group_.rank() ? nullptr : ledger_of(rank);
    if (theirs != nullptr) ACCORD_RETURN_IF_ERROR(mismatch_with(rank, *theirs, one));
  }
  return {};
}

Status DeviceChannel::examine(UnderWay& one) const {
  std::vector<Rank> missing;
  bool all_visible = true;
  for (const Rank rank : group_.topology().ranks()) {
    if (rank == group_.rank()) continue;
    const bool participates = one.number > 0 || std::find(one.peers.begin(), one.peers.end(), rank) != one.peers.end();
    if (!participates) continue;
    const DeviceLedger* const theirs = ledger_of(rank);
    const bool has_arrived = one.number > 0 && theirs != nullptr && theirs->count() >= one.number;
    const bool has_left = !has_arrived && (group_.state().peer(rank) == transport::PeerState::kLeft ||
                                           (one.number > 0 && theirs != nullptr && theirs->has_left()));
    if (has_left && !one.left_at) one.left_at = Clock::now();
    if (has_left && Clock::now() - *one.left_at > (one.number > 0 ? kGraceOfCollectives : kGrace))
      return Status(
          StatusCode::kPeerLost,
          fmt::format("{}: rank {} has closed its communicator and takes part in no further calls", where(one), rank),
          {rank});
    if (one.number == 0 || theirs == nullptr) {
      all_visible = false;
      continue;
    }
    if (!has_arrived) missing.push_back(rank);
    ACCORD_RETURN_IF_ERROR(mismatch_with(rank, *theirs, one));
  }
  if (!one.deadline.passed()) return {};
  if (missing.empty() && one.number == 0) missing = one.peers;
  const std::string who = !missing.empty() ? fmt::format("{} did not arrive in time", ranks_text(missing))
                          : all_visible    ? std::string("all ranks have arrived, but it did not end in time")
                                           : std::string("it did not end in time");
  return Status(StatusCode::kTimeout, fmt::format("{}: {}; raise the timeout if it is only slow", where(one), who),
                missing);
}

Status DeviceChannel::find_late() {
  std::string first = group_.where("graphs of calls");
  bool has_calls = false;
  Status failure;
  {
    const std::lock_guard lock(under_way_mutex_);
    has_calls = !under_way_.empty() || calling_ != nullptr;
    if (!has_calls && !has_graphs_) return {};
    if (has_calls) first = where(under_way_.empty() ? *calling_ : under_way_.front());
    if (stop_ != nullptr && stop_->has_fault())
      failure = Status(StatusCode::kWrongState,
                       fmt::format("{}: a launch of a graph and another call of this rank ran at the same time; put "
                                   "them into one stream, or order their streams by events",
                                   first));
    std::size_t left = kExamined;
    for (auto one = under_way_.begin(); one != under_way_.end() && left > 0 && failure.ok(); ++one, --left)
      failure = examine(*one);
    if (calling_ != nullptr && failure.ok()) {
      failure = examine(*calling_);
      const bool is_early = Clock::now() - calling_->deadline.at() < kGraceOfCaller;
      if (failure.code() == StatusCode::kTimeout && is_early) failure = {};
    }
  }
  if (!group_.state().healthy()) {
    Status why = group_.state().examine_alarm(first);
    return has_calls || group_.state().has_failed() ? why : Status();  // a group that closes ends its graphs itself
  }
  return failure.ok() ? failure : group_.state().fail(failure);
}

bool DeviceChannel::look_for_failure() {
  {
    const std::lock_guard lock(under_way_mutex_);
    if (!failure_.ok()) return false;
  }
  const Status failure = find_late();
  if (failure.ok()) return false;
  end_kernels(failure);
  return true;
}

Status DeviceChannel::find_failure() {
  if (!has_graphs_ && !is_any_under_way()) return {};
  // Asked first: by the time find_late() runs, it can see what is wrong with the calls, which says more than this
  // error.
  const Status status = confirmed_failure(backends_->asynchronous_error());
  if (Status late = find_late(); !late.ok()) return late;
  return status.ok() ? status : group_.state().fail(status.with_context(group_.where("calls on a GPU")));
}

Status DeviceChannel::confirmed_failure(const Status& status) {
  if (status.code() != StatusCode::kPeerLost || !status.ranks().empty()) return status;
  if (!lost_since_) lost_since_ = Clock::now();
  return Clock::now() - *lost_since_ > kGrace ? status : Status();
}

void DeviceChannel::abort_calls(const Status& failure) {
  end_kernels(failure);
  abort_backends();
}

void DeviceChannel::end_kernels(const Status& failure) {
  const std::lock_guard lock(under_way_mutex_);
  if (failure_.ok()) failure_ = failure;
  if (!failed_at_) failed_at_ = Clock::now();
  if (stop_ != nullptr) stop_->set();
}

void DeviceChannel::abort_backends() {
  has_graphs_ = false;
  const std::lock_guard lock(abort_mutex_);
  if (backends_ != nullptr) backends_->abort();
}

}  // namespace accord::comm
