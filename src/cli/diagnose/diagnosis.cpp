// Ranks that agree make the same call under the same number. So the first number under which two ranks made different
// calls is a mismatch. If some ranks wait in call k, a rank that is outside of any call and has not reached call k is
// behind. A rank that waits in an earlier call than others is not at fault; the rank it waits for is. Messages
// between two ranks have numbers of their own: a rank in the k-th message waits for the other rank's k-th call.
// Tagged messages are received in any order; a rank that waits for one waits for a rank that is in no call for that
// pair.
#include "cli/diagnose/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "exec/domain.hpp"

namespace accord::cli {
namespace {

using flight::Operation;
using flight::OperationState;
using flight::Order;

/// Describes one call of one order: "call 5, all_reduce of 4 x float32 (sum)", "send 3, 4 x float32 to rank 1", "send
/// of 4 x float32, tag 7, to rank 1".
std::string call_text(const Operation& operation, Direction direction, Rank peer) {
  if (direction == Direction::kNone)
    return fmt::format("call {}, {}", operation.number, exec::to_string(operation.request));
  const bool sends = direction == Direction::kSend;
  const std::string what = fmt::format("{} x {}", operation.request.count, to_string(operation.request.dtype));
  const std::string_view name = sends ? "send" : "recv", with = sends ? "to" : "from";
  if (operation.request.root != 0)
    return fmt::format("{} of {}, tag {}, {} rank {}", name, what, operation.request.root, with, peer);
  return fmt::format("{} {}, {} {} rank {}", name, operation.number, what, with, peer);
}

bool has_tags(const Order* order) {
  return order != nullptr && std::any_of(order->operations.begin(), order->operations.end(),
                                         [](const Operation& operation) { return operation.request.root != 0; });
}

bool never_ended(const Operation& operation) {
  return operation.state == OperationState::kRunning ||
         (operation.state == OperationState::kFailed && operation.started_ns.has_value());
}

/// Describes the properties of a call that ranks must agree on.
std::string called(const exec::RequestRecord& request) {
  const std::string text = exec::to_string(request);
  return request.parts == 0 ? text : fmt::format("{} (counts {})", text, hex64(request.parts));
}

std::int64_t since(const FlightLog& log, const Operation& operation) {
  const std::optional<std::int64_t> from = never_ended(operation) ? operation.started_ns
                                           : operation.ended_ns   ? operation.ended_ns
                                                                  : operation.queued_ns;
  // The wait in a failed call ended with the failure.
  const std::int64_t until =
      operation.state == OperationState::kFailed && operation.ended_ns ? *operation.ended_ns : log.taken_ns;
  return from ? std::max<std::int64_t>(0, until - *from) : 0;
}

std::string ago(std::int64_t nanoseconds) { return duration_text(Duration(nanoseconds)); }

std::string process_text(const RankState& rank) { return fmt::format("process {}", rank.process); }

class GroupDoctor {
 public:
  GroupDoctor(const GroupEvidence& group, const std::vector<GroupEvidence>& all) : group_(group), all_(all) {
    out_.id = group.id;
    out_.name = group.name;
  }

  GroupDiagnosis diagnose() {
    for (Rank r = 0; r < size(); ++r) out_.ranks.push_back(state_of(r));
    find_mismatches();
    find_missing_from_collectives();
    find_missing_from_messages();
    fill_waits();
    std::set<std::string> failures;
    for (const RankEvidence& rank : group_.ranks)
      if (rank.log && rank.log->failure && failures.insert(rank.log->failure->message).second)
        out_.failures.push_back(fmt::format("rank {}: {}: {}", rank.log->rank, to_string(rank.log->failure->code),
                                            rank.log->failure->message));
    out_.someone_waits = std::any_of(out_.ranks.begin(), out_.ranks.end(), [](const RankState& r) { return r.waits; });
    find_all_in();
    return std::move(out_);
  }

 private:
  Rank size() const { return static_cast<Rank>(group_.ranks.size()); }
  const FlightLog* log_of(Rank rank) const {
    const std::optional<FlightLog>& log = group_.ranks[static_cast<std::size_t>(rank)].log;
    return log ? &*log : nullptr;
  }
  RankState& state(Rank rank) { return out_.ranks[static_cast<std::size_t>(rank)]; }

  static bool waits_in(const FlightLog& log, const Order& order) {
    const Operation* last = order.last_begun();
    if (last == nullptr || !never_ended(*last)) return false;
    return log.state != CommunicatorState::kReady || since(log, *last) >= kMomentNs;
  }

  RankState state_of(Rank rank) const {
    const RankEvidence& evidence = group_.ranks[static_cast<std::size_t>(rank)];
    RankState state{.rank = rank,
                    .process = evidence.process,
                    .host = evidence.host,
                    .condition = evidence.condition,
                    .has_log = evidence.log.has_value(),
                    .waits_for = {}};
    if (!evidence.log) return state;
    // The call that the rank has waited in for longest; without one, the call that ended last.
    for (const Order& order : evidence.log->orders) {
      const Operation* last = order.last_begun();
      if (last == nullptr) continue;
      const bool waits = waits_in(*evidence.log, order);
      const std::int64_t time = since(*evidence.log, *last);
      const bool is_more_informative =
          !state.call || (waits && !state.waits) ||
          (waits == state.waits && (waits ? time > state.since_ns : time < state.since_ns));
      if (is_more_informative) {
        state.waits = waits;
        state.call = *last;
        state.direction = order.direction;
        state.peer = order.peer;
        state.since_ns = time;
      }
      state.queued += static_cast<std::size_t>(
          std::count_if(order.operations.begin(), order.operations.end(),
                        [](const Operation& operation) { return operation.state == OperationState::kQueued; }));
    }
    return state;
  }

  /// Finds the first number under which ranks made different calls.
  void find_mismatches() {
    std::map<std::uint64_t, std::vector<std::pair<Rank, const Operation*>>> calls;
    for (Rank r = 0; r < size(); ++r) {
      const Order* order = log_of(r) == nullptr ? nullptr : log_of(r)->order(Direction::kNone);
      if (order == nullptr) continue;
      for (const Operation& operation : order->operations)
        if (operation.state != OperationState::kQueued) calls[operation.number].emplace_back(r, &operation);
    }
    for (const auto& [number, ranks] : calls) {
      // Calls that never began because the communicator had failed may differ: what a program does after a failure is
      // up to it.
      const bool any_began = std::any_of(ranks.begin(), ranks.end(), [](const auto& call) {
        return call.second->state != OperationState::kFailed || call.second->started_ns.has_value();
      });
      if (any_began && note_mismatch(fmt::format("call {}", number), ranks)) return;
    }
  }

  bool note_mismatch(const std::string& where, const std::vector<std::pair<Rank, const Operation*>>& calls) {
    std::map<std::string, std::vector<Rank>> sides;
    for (const auto& [rank, operation] : calls) sides[called(operation->request)].push_back(rank);
    if (sides.size() == 1) {  // all made the same call, but may have chosen different plans
      sides.clear();
      for (const auto& [rank, operation] : calls)
        if (!operation->algorithm.empty() && operation->request.phase != exec::Phase::kCountsFirst)
          sides[fmt::format("{} by {}", exec::to_string(operation->request), operation->algorithm)].push_back(rank);
    }
    if (sides.size() < 2) return false;
    const auto largest = std::max_element(
        sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    const bool clear = std::count_if(sides.begin(), sides.end(), [&](const auto& side) {
                         return side.second.size() == largest->second.size();
                       }) == 1;
    Finding finding{.kind = FindingKind::kMismatch, .ranks = {}, .text = {}};
    std::string others;
    for (const auto& side : sides) {
      const bool at_fault = !clear || &side != &*largest;
      if (at_fault) finding.ranks.insert(finding.ranks.end(), side.second.begin(), side.second.end());
      const std::string text = fmt::format("{} called {}", ranks_text(side.second), side.first);
      (at_fault ? finding.text : others) += (at_fault ? finding.text : others).empty() ? text : "; " + text;
    }
    std::sort(finding.ranks.begin(), finding.ranks.end());
    finding.text = fmt::format("{}: {}{}{}", where, finding.text, others.empty() ? "" : "; ", others);
    // Both sides of a message may find the same mismatch.
    const auto is_same = [&](const Finding& other) { return other.text == finding.text; };
    if (std::none_of(out_.findings.begin(), out_.findings.end(), is_same)) out_.findings.push_back(std::move(finding));
    return true;
  }

  void find_missing_from_collectives() {
    const Operation* front = nullptr;  // the latest call in which a rank waits
    std::vector<Rank> waiting;
    for (Rank r = 0; r < size(); ++r) {
      const Order* order = log_of(r) == nullptr ? nullptr : log_of(r)->order(Direction::kNone);
      if (order == nullptr || !waits_in(*log_of(r), *order)) continue;
      waiting.push_back(r);
      if (front == nullptr || order->last_begun()->number > front->number) front = order->last_begun();
    }
    if (front == nullptr) return;
    const std::string call = call_text(*front, Direction::kNone, -1);
    for (Rank r = 0; r < size(); ++r) {
      const Order* order = log_of(r) == nullptr ? nullptr : log_of(r)->order(Direction::kNone);
      const Operation* last = order == nullptr ? nullptr : order->last_begun();
      const std::uint64_t number = last == nullptr ? 0 : last->number;
      const bool inside = last != nullptr && never_ended(*last);
      if (!inside && arrived_after_failure(r, front->number)) continue;
      if (inside ? state(r).condition == Condition::kStopped : number < front->number) blame(r, call, waiting, inside);
      if (inside && state(r).condition == Condition::kGone) blame(r, call, waiting, inside);
    }
  }

  /// True if `rank` reached the call after the communicator had failed, unless it failed because `rank` was so late.
  bool arrived_after_failure(Rank rank, std::uint64_t number) const {
    const FlightLog* log = log_of(rank);
    if (log == nullptr || !log->failure || log->failure->code == StatusCode::kTimeout) return false;
    const Order* order = log->order(Direction::kNone);
    return order != nullptr && !order->operations.empty() && order->operations.back().number >= number;
  }

  /// Reports why `rank`, for which the ranks in `waiting` wait in `call`, makes no progress.
  void blame(Rank rank, const std::string& call, const std::vector<Rank>& waiting, bool inside) {
    if (std::any_of(out_.findings.begin(), out_.findings.end(), [&](const Finding& finding) {
          return finding.kind != FindingKind::kMismatch &&
                 std::find(finding.ranks.begin(), finding.ranks.end(), rank) != finding.ranks.end();
        }))
      return;
    const RankState& it = state(rank);
    std::vector<Rank> others;
    std::copy_if(waiting.begin(), waiting.end(), std::back_inserter(others), [&](Rank r) { return r != rank; });
    const std::string who =
        others.empty() ? "" : fmt::format(", where {} wait{}", ranks_text(others), others.size() == 1 ? "s" : "");
    const std::string missing_text =
        inside ? fmt::format("is in {}", it.what_call()) : fmt::format("has not arrived at {}{}", call, who);
    const auto note = [&](FindingKind kind, std::string text) {
      out_.findings.push_back({.kind = kind, .ranks = {rank}, .text = fmt::format("rank {} {}", rank, text)});
    };
    switch (it.condition) {
      case Condition::kStopped:
        return note(FindingKind::kStopped,
                    fmt::format("is stopped ({}, by SIGSTOP or a debugger) and {}", process_text(it), missing_text));
      case Condition::kGone:
        return note(FindingKind::kGone, fmt::format("is gone ({} has ended) and {}", process_text(it), missing_text));
      case Condition::kLeft:
        return note(FindingKind::kLeft, fmt::format("has left the communicator, or never had it ({} is alive), and {}",
                                                    process_text(it), missing_text));
      case Condition::kElsewhere:
      case Condition::kHidden:
        if (!it.has_log) return;  // not visible from here, which the table says
        break;
      default: break;
    }
    if (!it.has_log)
      return note(FindingKind::kSilent,
                  fmt::format("left no dump: it was killed or stopped, or still runs; {} wait{} in {}",
                              ranks_text(others), others.size() == 1 ? "s" : "", call));
    note(FindingKind::kBehind, missing_text + "; " + activity_of(rank));
  }

  /// Describes the last call of a rank that is outside of any call, and the calls of its process in other
  /// communicators.
  std::string activity_of(Rank rank) const {
    const RankState& it = out_.ranks[static_cast<std::size_t>(rank)];
    std::string text = "it has made no call yet";
    if (it.waits) {
      text = fmt::format("it has been in {} for {}", it.what_call(), ago(it.since_ns));
    } else if (it.call) {
      text = fmt::format("its last call was {}, which ended {} earlier", it.what_call(), ago(it.since_ns));
    }
    for (const GroupEvidence& other : all_) {
      if (other.id == group_.id) continue;
      for (const RankEvidence& evidence : other.ranks) {
        if (!evidence.log || evidence.process != it.process || log_of(rank)->host != evidence.log->host) continue;
        for (const Order& order : evidence.log->orders)
          if (waits_in(*evidence.log, order))
            text += fmt::format("; {} has been in {} of group \"{}\" for {}", process_text(it),
                                call_text(*order.last_begun(), order.direction, order.peer), other.name,
                                ago(since(*evidence.log, *order.last_begun())));
      }
    }
    return text;
  }

  void find_missing_from_messages() {
    for (Rank r = 0; r < size(); ++r) {
      if (log_of(r) == nullptr) continue;
      for (const Order& order : log_of(r)->orders)
        if (order.direction != Direction::kNone && waits_in(*log_of(r), order)) find_missing_from(r, order);
    }
  }

  void find_missing_from(Rank rank, const Order& order) {
    const Operation& mine = *order.last_begun();
    const bool sends = order.direction == Direction::kSend;
    const FlightLog* theirs = log_of(order.peer);
    const Order* mirror =
        theirs == nullptr ? nullptr : theirs->order(sends ? Direction::kReceive : Direction::kSend, rank);
    if (has_tags(&order) || has_tags(mirror)) {
      const Operation* last = mirror == nullptr ? nullptr : mirror->last_begun();
      if (last != nullptr && never_ended(*last)) return blame_if_stopped_or_gone(order.peer, rank);
    } else if (mirror != nullptr) {
      for (const Operation& operation : mirror->operations)
        if (operation.number == mine.number && operation.state != OperationState::kQueued) {
          note_mismatch(fmt::format("message {} from rank {} to rank {}", mine.number, sends ? rank : order.peer,
                                    sends ? order.peer : rank),
                        {{rank, &mine}, {order.peer, &operation}});
          return blame_if_stopped_or_gone(order.peer, rank);
        }
    }
    blame(order.peer, call_text(mine, sends ? Direction::kReceive : Direction::kSend, rank), {rank}, false);
  }

  void blame_if_stopped_or_gone(Rank peer, Rank waiting) {
    if (state(peer).condition == Condition::kStopped || state(peer).condition == Condition::kGone)
      blame(peer, "", {waiting}, true);
  }

  void fill_waits() {
    std::set<Rank> at_fault;
    for (const Finding& finding : out_.findings) at_fault.insert(finding.ranks.begin(), finding.ranks.end());
    for (RankState& rank : out_.ranks) {
      if (!rank.waits) continue;
      if (rank.direction != Direction::kNone) {
        rank.waits_for = {rank.peer};
      } else if (rank.call->waits_for) {
        rank.waits_for = {*rank.call->waits_for};
      } else {
        for (const Rank r : at_fault)
          if (r != rank.rank) rank.waits_for.push_back(r);
      }
    }
  }

  void find_all_in() {
    if (!out_.findings.empty() || !out_.someone_waits || !out_.failures.empty()) return;
    const auto is_in = [](const RankState& r) { return r.waits; };
    const auto first = std::find_if(out_.ranks.begin(), out_.ranks.end(), is_in);
    Finding finding{.kind = FindingKind::kAllIn, .ranks = {}, .text = {}};
    const bool all = std::all_of(out_.ranks.begin(), out_.ranks.end(), is_in);
    finding.text = fmt::format("{} in {}, and no rank is missing from it{}: it is slow, or its data is large",
                               all ? "all ranks are" : fmt::format("rank {} is", first->rank), first->what_call(),
                               all ? "" : " that can be seen from here");
    out_.findings.push_back(std::move(finding));
  }

  const GroupEvidence& group_;
  const std::vector<GroupEvidence>& all_;
  GroupDiagnosis out_;
};

}  // namespace

std::string_view to_string(FindingKind kind) {
  switch (kind) {
    case FindingKind::kMismatch: return "mismatch";
    case FindingKind::kStopped: return "stopped";
    case FindingKind::kGone: return "gone";
    case FindingKind::kLeft: return "left";
    case FindingKind::kSilent: return "silent";
    case FindingKind::kBehind: return "behind";
    case FindingKind::kAllIn: return "all_in";
  }
  return "";
}

std::string RankState::what_call() const { return call_text(*call, direction, peer); }

std::vector<GroupDiagnosis> diagnose(const std::vector<GroupEvidence>& groups) {
  std::vector<GroupDiagnosis> diagnoses;
  diagnoses.reserve(groups.size());
  for (const GroupEvidence& group : groups) diagnoses.push_back(GroupDoctor(group, groups).diagnose());
  return diagnoses;
}

}  // namespace accord::cli
