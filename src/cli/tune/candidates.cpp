// Slots smaller than the communicator's keep more of a round in the caches and let copies of one round overlap with
// sums of the next. They matter only for messages that do not fit into them. Buffers are private, so algorithms for
// registered buffers are not among the candidates, and the rules are for unregistered calls.
#include "cli/tune/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/config.hpp"
#include "cli/plan/commands.hpp"
#include "plan/verifier.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kSlots[] = {64 << 10, 128 << 10, 256 << 10, 512 << 10};
constexpr double kMaxPredictedRatio = 20;

Result<plan::Plan> plan_of(const plan::AlgorithmEntry& entry, int ranks) {
  return plan::make_plan(entry, topology::Topology::uniform(ranks), {.collective = entry.collective});
}

// Whether an algorithm serves CPU buffers anywhere in memory.
bool serves_any_call(const plan::AlgorithmEntry& entry) {
  return entry.buffers == plan::Buffers::kAnywhere && !entry.multicasts;
}

PlanCall call_of(std::size_t bytes) { return {.bytes = bytes, .dtype = DType::kFloat32, .op = ReduceOp::kSum}; }

}  // namespace

std::vector<Candidate> all_candidates(Collective collective) {
  std::vector<Candidate> candidates;
  const std::size_t slot_bytes = config().ok() ? config()->hints.slot_bytes : GroupHints().slot_bytes;
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.collective != collective || !serves_any_call(entry)) continue;
    candidates.push_back({.name = std::string(entry.name), .algorithm = &entry});
    if (collective == Collective::kBarrier) continue;
    for (const std::size_t slot : kSlots)
      if (slot < slot_bytes)
        candidates.push_back({.name = fmt::format("{}@{}k", entry.name, slot >> 10),
                              .algorithm = &entry,
                              .slot_bytes = slot,
                              .from_bytes = 2 * slot});
  }
  return candidates;
}

Result<std::vector<Candidate>> candidates_for(Collective collective, int ranks) {
  std::vector<Candidate> candidates = {{.name = "default"}};
  const plan::AlgorithmEntry* runs = nullptr;  // the last one that these ranks can run
  for (Candidate& candidate : all_candidates(collective)) {
    if (candidate.algorithm == runs) {
      candidates.push_back(std::move(candidate));
      continue;
    }
    if (candidate.slot_bytes != 0) continue;
    const plan::AlgorithmEntry& entry = *candidate.algorithm;
    const int size = collective == Collective::kSendRecv ? 2 : ranks;
    const Result<plan::Plan> plan = plan_of(entry, size);
    if (!plan.ok()) continue;  // not for this number of ranks
    const Status right = plan::verify_for_calls(*plan);
    if (!right.ok()) return right.with_context(fmt::format("{}:{}", to_string(collective), entry.name));
    if (!figures_of(*plan, call_of(64 << 10)).runs.ok()) continue;
    runs = &entry;
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

bool is_promising(const Candidate& candidate, Collective collective, int ranks, std::size_t bytes) {
  if (bytes < candidate.from_bytes) return false;
  if (candidate.name == "default" || bytes == 0) return true;
  const int size = collective == Collective::kSendRecv ? 2 : ranks;
  double best = std::numeric_limits<double>::max(), mine = best;
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.collective != collective || !serves_any_call(entry)) continue;
    const Result<plan::Plan> plan = plan_of(entry, size);
    if (!plan.ok()) continue;
    const double seconds = figures_of(*plan, call_of(bytes)).seconds;
    best = std::min(best, seconds);
    if (&entry == candidate.algorithm) mine = seconds;
  }
  return mine <= kMaxPredictedRatio * best;
}

}  // namespace accord::cli
