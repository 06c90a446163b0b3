#include "sim/critical_path.hpp"

#include <algorithm>

namespace accord::sim {
namespace {

PathPart part_of(OpKind kind) {
  switch (kind) {
    case OpKind::kCompute: return PathPart::kCompute;
    case OpKind::kWork: return PathPart::kWork;
    case OpKind::kSend: return PathPart::kSends;
    case OpKind::kNotify:
    case OpKind::kWait:
    case OpKind::kBarrier: break;
  }
  return PathPart::kSteps;
}

// The part to which the time between two steps belongs. None passes for those reasons that are left out.
PathPart part_of(Reason reason) {
  switch (reason) {
    case Reason::kSignal: return PathPart::kSignals;
    case Reason::kMessage: return PathPart::kNetwork;
    case Reason::kRound: return PathPart::kRounds;
    case Reason::kCore: return PathPart::kCores;
    case Reason::kOrder:
    case Reason::kProcessor:
    case Reason::kBarrier: break;
  }
  return PathPart::kCalls;
}

}  // namespace

std::string_view to_string(PathPart part) {
  switch (part) {
    case PathPart::kCompute: return "computation";
    case PathPart::kWork: return "copies and reductions";
    case PathPart::kSends: return "processor time of messages";
    case PathPart::kSteps: return "processor time of signals";
    case PathPart::kNetwork: return "network";
    case PathPart::kSignals: return "signals within hosts";
    case PathPart::kRounds: return "other ranks' rounds";
    case PathPart::kCores: return "waiting for a core";
    case PathPart::kCalls: return "calls";
  }
  return "unknown";
}

CriticalPath critical_path(const Journal& journal) {
  CriticalPath path;
  const std::vector<JournalEntry>& entries = journal.entries;
  const auto last = std::max_element(entries.begin(), entries.end(),
                                     [](const JournalEntry& a, const JournalEntry& b) { return a.end < b.end; });
  for (auto at = last; at != entries.end();) {
    const bool is_first = at->cause == kNone;
    const double waited = at->begin - (is_first ? 0 : entries[at->cause].end);
    path.steps.push_back({static_cast<std::uint32_t>(at - entries.begin()), waited});
    path.seconds[static_cast<std::size_t>(part_of(at->kind))] += at->end - at->begin;
    path.seconds[static_cast<std::size_t>(part_of(at->reason))] += waited;
    at = is_first ? entries.end() : entries.begin() + at->cause;
  }
  std::reverse(path.steps.begin(), path.steps.end());
  return path;
}

}  // namespace accord::sim
