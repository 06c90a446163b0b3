// The rules that need no execution. A shape ties the chunks of input and output together, so that slice t of an input
// chunk and slice t of the output chunks made of it are the same elements. A step touches its own rank's memory and,
// where plan.hpp allows it, scratch or packets of peers.

#include "plan/step_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

namespace accord::plan {
namespace {

template <typename... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

int chunks_of(const Plan& plan, Space space) {
  switch (space) {
    case Space::kInput: return plan.input_chunks;
    case Space::kOutput: return plan.output_chunks;
    case Space::kScratch: return plan.scratch_chunks;
    case Space::kPackets: return plan.packet_chunks;
    case Space::kPartials: return plan.partial_chunks;
    case Space::kMulticast: return plan.multicast_chunks;
  }
  return 0;
}

Status check_chunk_counts(const Plan& plan) {
  const CollectiveTraits& traits = traits_of(plan.collective);
  const std::int64_t in = plan.input_chunks, out = plan.output_chunks, size = plan.size;
  if (traits.input.holders == Holders::kNobody) {
    if (in == 0 && out == 0) return {};
    return invalid("a {} has no input or output, not {} and {} chunks", traits.name, in, out);
  }
  const std::int64_t in_parts = traits.input.divided ? size : 1, out_parts = traits.output.divided ? size : 1;
  if (in >= 1 && out >= 1 && in % in_parts == 0 && in / in_parts * out_parts == out) return {};
  return invalid("{} input and {} output chunks; {} needs {} and {}, or a multiple of both", in, out, traits.name,
                 in_parts, out_parts);
}

Status check_rank(const Plan& plan, Rank rank) {
  if (rank >= 0 && rank < plan.size) return {};
  return invalid("there is no rank {}, only ranks 0-{}", rank, plan.size - 1);
}

Status check_chunk(const Plan& plan, const Chunk& chunk) {
  if (chunk.rank != kEveryRank) {
    ACCORD_RETURN_IF_ERROR(check_rank(plan, chunk.rank));
  } else if (chunk.space != Space::kMulticast) {
    return invalid("there is no {}: only multicast is of every rank at once", to_string(chunk));
  }
  const int chunks = chunks_of(plan, chunk.space);
  if (chunk.index < 0 || chunk.index >= chunks) {
    return invalid("{} is out of bounds: {} has {} chunk{}", to_string(chunk), to_string(chunk.space), chunks,
                   chunks == 1 ? "" : "s");
  }
  const CollectiveTraits& traits = traits_of(plan.collective);
  const bool held = (chunk.space != Space::kInput || holds(traits.input, chunk.rank, plan.root)) &&
                    (chunk.space != Space::kOutput || holds(traits.output, chunk.rank, plan.root));
  if (held) return {};
  return invalid("there is no {}: {} with root {} has none on that rank", to_string(chunk), traits.name, plan.root);
}

bool is_buffer(Space space) { return space == Space::kInput || space == Space::kOutput; }

Status check_source(const Plan& plan, Rank rank, const Chunk& chunk, StepKind kind) {
  if (chunk.rank == kEveryRank) {
    if (kind == StepKind::kReduce) return {};
    return invalid("{} cannot be copied: it is read as the sum over the ranks, by a reduction", to_string(chunk));
  }
  if (chunk.rank == rank || chunk.space == Space::kScratch || chunk.space == Space::kPartials) return {};
  if (plan.buffers != Buffers::kAnywhere && is_buffer(chunk.space)) return {};
  return invalid("{} cannot be reached from rank {}: in a peer's memory a step reads only scratch and partials{}",
                 to_string(chunk), rank,
                 is_buffer(chunk.space)             ? ", and in plans for buffers in windows input and output"
                 : chunk.space == Space::kMulticast ? ", and multicast of every rank at once"
                                                    : "");
}

Status check_destination(const Plan& plan, Rank rank, const Chunk& chunk, StepKind kind) {
  if (chunk.space == Space::kInput)
    return invalid("{} must not be written: it is the caller's input", to_string(chunk));
  if (chunk.space == Space::kPackets) return invalid("{} must only be written by put packets", to_string(chunk));
  if (chunk.rank == rank || chunk.rank == kEveryRank) return {};
  if ((chunk.space == Space::kScratch || chunk.space == Space::kPartials) && kind == StepKind::kCopy) return {};
  if (plan.buffers != Buffers::kAnywhere && chunk.space == Space::kOutput) return {};
  return invalid(
      "{} cannot be written from rank {}: in a peer's memory a copy writes only scratch and partials, a reduction "
      "nothing{}",
      to_string(chunk), rank, chunk.space == Space::kOutput ? ", and in plans for buffers in windows both output" : "");
}

bool is_of_every_rank(const std::vector<Chunk>& chunks) {
  return std::ranges::any_of(chunks, [](const Chunk& chunk) { return chunk.rank == kEveryRank; });
}

Status check_operand_counts(const Step& step) {
  const std::size_t sources = step.sources.size(), destinations = step.destinations.size();
  const auto needs = [&](std::string_view what) {
    return invalid("a {} needs {}, not {} and {}", to_string(step.kind), what, sources, destinations);
  };
  switch (step.kind) {
    case StepKind::kCopy:
      if (sources != 1 || destinations < 1 || destinations > 2) return needs("one source and one or two destinations");
      break;
    case StepKind::kReduce:
      if ((sources < 2 && !is_of_every_rank(step.sources)) || destinations < 1 || destinations > 2)
        return needs("two or more sources, or one of every rank, and one or two destinations");
      if (sources > 1 && is_of_every_rank(step.sources))
        return invalid("a chunk of every rank must be the only source of its sum");
      if (sources > 1 && is_of_every_rank(step.destinations))
        return invalid("a sum of several sources is copied to every rank, not written there");
      break;
    case StepKind::kPutPackets:
      if (sources != 1 || destinations != 1) return needs("one source and one destination");
      break;
    case StepKind::kSignal:
    case StepKind::kWait:
    case StepKind::kLaneBarrier:
      if (sources != 0 || destinations != 0) return needs("no sources and no destinations");
      break;
  }
  return {};
}

Status check_id(int id, int limit, std::string_view what) {
  if (id >= 0 && id < limit) return {};
  return invalid("{} {} is out of bounds: ids are 0-{}", what, id, limit - 1);
}

bool is_in(const std::vector<Chunk>& chunks, Space space) {
  return std::ranges::any_of(chunks, [&](const Chunk& chunk) { return chunk.space == space; });
}

Status check_partials(const Step& step) {
  if (!is_in(step.sources, Space::kPartials) && !is_in(step.destinations, Space::kPartials)) return {};
  const auto is_partial = [](const Chunk& chunk) { return chunk.space == Space::kPartials; };
  const bool moves = step.kind == StepKind::kCopy && std::ranges::all_of(step.sources, is_partial) &&
                     std::ranges::all_of(step.destinations, is_partial);
  if (step.kind != StepKind::kReduce && !moves)
    return invalid("partials can only be read and written by reductions, and copied to partials");
  if (is_in(step.sources, Space::kPackets)) return invalid("a reduction with partials cannot read packets");
  if (is_in(step.sources, Space::kMulticast) || is_in(step.destinations, Space::kMulticast))
    return invalid("a reduction with partials cannot touch multicast, which holds elements");
  return {};
}

// One chunk contains the other.
bool meet(const Chunk& a, const Chunk& b) {
  const bool same_rank = a.rank == b.rank || a.rank == kEveryRank || b.rank == kEveryRank;
  return same_rank && a.space == b.space && a.index == b.index;
}

Status check_no_packets(const Step& step) {
  if (!is_in(step.sources, Space::kPackets)) return {};
  return invalid("data in packets cannot be written to every rank: copy them out of the packets first");
}

Status check_movement(const Plan& plan, Rank rank, const Step& step) {
  for (const Chunk& chunk : step.sources) {
    ACCORD_RETURN_IF_ERROR(check_chunk(plan, chunk));
    ACCORD_RETURN_IF_ERROR(check_source(plan, rank, chunk, step.kind));
  }
  for (const Chunk& chunk : step.destinations) {
    ACCORD_RETURN_IF_ERROR(check_chunk(plan, chunk));
    ACCORD_RETURN_IF_ERROR(check_destination(plan, rank, chunk, step.kind));
  }
  ACCORD_RETURN_IF_ERROR(check_partials(step));
  if (step.destinations.size() == 2 && meet(step.destinations[0], step.destinations[1])) {
    return invalid("both destinations are {}", to_string(step.destinations[0]));
  }
  if (is_of_every_rank(step.sources) || is_of_every_rank(step.destinations))
    ACCORD_RETURN_IF_ERROR(check_no_packets(step));
  const auto remote = [&](const Chunk& chunk) { return chunk.rank != rank; };
  if (std::ranges::count_if(step.destinations, remote) > 1)
    return invalid("a step may write to one peer's memory, not to several");
  if (step.kind == StepKind::kCopy) {
    if (std::ranges::count_if(step.sources, remote) + std::ranges::count_if(step.destinations, remote) > 1) {
      return invalid("a copy may have one operand in a peer's memory, not several");
    }
  }
  return {};
}

Status check_put(const Plan& plan, Rank rank, const Step& step) {
  ACCORD_RETURN_IF_ERROR(check_rank(plan, step.peer));
  if (step.peer == rank) return invalid("rank {} puts packets to itself", rank);
  const Chunk& source = step.sources[0];
  const Chunk& destination = step.destinations[0];
  ACCORD_RETURN_IF_ERROR(check_chunk(plan, source));
  ACCORD_RETURN_IF_ERROR(check_chunk(plan, destination));
  if (source.rank != rank || source.space == Space::kPackets || source.space == Space::kPartials ||
      source.space == Space::kMulticast) {
    return invalid("packets are put from the rank's own input, output or scratch, not from {}", to_string(source));
  }
  if (destination.space != Space::kPackets || destination.rank != step.peer) {
    return invalid("packets go to packets of the peer, rank {}, not to {}", step.peer, to_string(destination));
  }
  if (destination.index % plan.size != rank) {
    return invalid("{} is for packets from rank {}, not from rank {}", to_string(destination),
                   destination.index % plan.size, rank);
  }
  return {};
}

std::array<int, 6> chunk_counts(const Plan& plan) {
  return {plan.input_chunks,  plan.output_chunks,  plan.scratch_chunks,
          plan.packet_chunks, plan.partial_chunks, plan.multicast_chunks};
}

std::int64_t chunks_of_rank(const Plan& plan) {
  const std::array<int, 6> counts = chunk_counts(plan);
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

}  // namespace

Status check_shape(const Plan& plan) {
  if (plan.size < 1 || plan.size > kMaxSize) return invalid("{} ranks; a plan has 1-{}", plan.size, kMaxSize);
  if (plan.root < 0 || plan.root >= plan.size)
    return invalid("root {} is not one of the ranks 0-{}", plan.root, plan.size - 1);
  if (plan.collective == Collective::kSendRecv && (plan.size != 2 || plan.root != 0)) {
    return invalid("send_recv is a plan for 2 ranks with root 0, not for {} with root {}", plan.size, plan.root);
  }
  const bool has_windows = plan.collective != Collective::kSendRecv && plan.collective != Collective::kBarrier;
  if (plan.buffers != Buffers::kAnywhere && !has_windows)
    return invalid("{} is never on buffers in windows", to_string(plan.collective));
  for (const int count : chunk_counts(plan))
    if (count < 0) return invalid("a count of {} chunks", count);
  if (chunks_of_rank(plan) > kMaxChunks)
    return invalid("{} chunks on each rank are more than the {} that a plan may have", chunks_of_rank(plan),
                   kMaxChunks);
  if (plan.signals < 0 || plan.signals > signals_of_pair(plan.size))
    return invalid("{} signals; a pair of {} ranks has 0-{}", plan.signals, plan.size, signals_of_pair(plan.size));
  if (plan.packet_chunks > packet_chunks_of(plan.size))
    return invalid("{} packet chunks; a rank of {} has 0-{}", plan.packet_chunks, plan.size,
                   packet_chunks_of(plan.size));
  return check_chunk_counts(plan);
}

Status check_whole_shape(const Plan& plan) {
  ACCORD_RETURN_IF_ERROR(check_shape(plan));
  if (const std::int64_t chunks = chunks_of_rank(plan); chunks * plan.size > kMaxChunks)
    return invalid("{} chunks on each of {} ranks are more than the {} that a plan may have", chunks, plan.size,
                   kMaxChunks);
  return {};
}

Status check_step(const Plan& plan, Rank rank, const Step& step) {
  ACCORD_RETURN_IF_ERROR(check_rank(plan, rank));
  ACCORD_RETURN_IF_ERROR(check_operand_counts(step));
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kReduce: return check_movement(plan, rank, step);
    case StepKind::kPutPackets: return check_put(plan, rank, step);
    case StepKind::kSignal:
    case StepKind::kWait:
      ACCORD_RETURN_IF_ERROR(check_rank(plan, step.peer));
      return check_id(step.id, signals_of_pair(plan.size), "signal");
    case StepKind::kLaneBarrier: return check_id(step.id, kMaxIds, "lane barrier");
  }
  return invalid("unknown kind of step {}", static_cast<int>(step.kind));
}

std::string to_string(const StepPlace& place, const Step& step) {
  return fmt::format("rank {}, lane {}, step {} ({})", place.rank, place.lane, place.step, to_string(step));
}

std::string place_text(const Plan& plan, const StepPlace& place) {
  const Lane& lane = plan.programs[static_cast<std::size_t>(place.rank)].lanes[static_cast<std::size_t>(place.lane)];
  return to_string(place, lane.steps[static_cast<std::size_t>(place.step)]);
}

Status step_error(const Plan& plan, const StepPlace& place, const Step& step, std::string_view problem) {
  return {StatusCode::kInvalidArgument, fmt::format("{}, {}: {}", to_string(plan), to_string(place, step), problem)};
}

int length_classes(const Plan& plan) {
  return traits_of(plan.collective).input.divided ? plan.input_chunks / plan.size : plan.input_chunks;
}

}  // namespace accord::plan
