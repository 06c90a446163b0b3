// Names of the parts of a plan, and its steps in words: the vocabulary of error messages, of JSON and of drawings.

#include "plan/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

namespace accord::plan {
namespace {

// "a, b -> c, d"; of many operands the first two and the last.
std::string operands_text(std::span<const Chunk> chunks) {
  constexpr std::size_t kMaxShown = 4;
  std::vector<std::string> words;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks.size() > kMaxShown && i == 2) {
      words.push_back(fmt::format("... ({} more)", chunks.size() - 3));
      i = chunks.size() - 1;
    }
    words.push_back(to_string(chunks[i]));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string movement_text(std::string_view verb, const Step& step) {
  return fmt::format("{} {} -> {}", verb, operands_text(step.sources), operands_text(step.destinations));
}

}  // namespace

std::string_view to_string(Space space) {
  switch (space) {
    case Space::kInput: return "input";
    case Space::kOutput: return "output";
    case Space::kScratch: return "scratch";
    case Space::kPackets: return "packets";
    case Space::kPartials: return "partials";
    case Space::kMulticast: return "multicast";
  }
  return "?";
}

std::vector<Chunk> single_chunks(const Chunk& chunk, int size) {
  if (chunk.rank != kEveryRank) return {chunk};
  std::vector<Chunk> chunks(static_cast<std::size_t>(size), chunk);
  for (Rank rank = 0; rank < size; ++rank) chunks[static_cast<std::size_t>(rank)].rank = rank;
  return chunks;
}

std::string to_string(const Chunk& chunk) {
  if (chunk.rank == kEveryRank) return fmt::format("{}[{}] of every rank", to_string(chunk.space), chunk.index);
  return fmt::format("{}[{}] of rank {}", to_string(chunk.space), chunk.index, chunk.rank);
}

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::kCopy: return "copy";
    case StepKind::kReduce: return "reduce";
    case StepKind::kSignal: return "signal";
    case StepKind::kWait: return "wait";
    case StepKind::kPutPackets: return "put_packets";
    case StepKind::kLaneBarrier: return "lane_barrier";
  }
  return "?";
}

std::string to_string(const Step& step) {
  switch (step.kind) {
    case StepKind::kCopy: return movement_text("copy", step);
    case StepKind::kReduce: return movement_text("reduce", step);
    case StepKind::kSignal: return fmt::format("signal {} to rank {}", step.id, step.peer);
    case StepKind::kWait: return fmt::format("wait for signal {} of rank {}", step.id, step.peer);
    case StepKind::kPutPackets: return movement_text("put packets", step);
    case StepKind::kLaneBarrier: return fmt::format("lane barrier {}", step.id);
  }
  return "?";
}

std::string_view to_string(Order order) {
  switch (order) {
    case Order::kNone: return "none";
    case Order::kCanonical: return "canonical";
    case Order::kFixed: return "fixed";
    case Order::kSwitch: return "switch";
  }
  return "?";
}

std::string_view to_string(Pacing pacing) { return pacing == Pacing::kByPlan ? "by_plan" : "by_executor"; }

std::string_view to_string(Buffers buffers) {
  switch (buffers) {
    case Buffers::kAnywhere: return "anywhere";
    case Buffers::kInWindows: return "in_windows";
    case Buffers::kInWindowsApart: return "in_windows_apart";
  }
  return "?";
}

std::string to_string(const Plan& plan) {
  return fmt::format("plan \"{}\" ({}, {} {})", plan.name, to_string(plan.collective), plan.size,
                     plan.size == 1 ? "rank" : "ranks");
}

// Peers access scratch, partials, multicast and windows, so a plan has them on all ranks or on none.
bool needs_mapped_peers(const Plan& plan) {
  const int reached = plan.scratch_chunks + plan.partial_chunks + plan.multicast_chunks;
  return plan.size > 1 && (reached > 0 || plan.buffers != Buffers::kAnywhere);
}

}  // namespace accord::plan
