// A step costs the sum over its chunks. The costs are written down for the bytes of a full round.
#include "sim/step_costs.hpp"

#include <algorithm>
#include <unordered_set>

#include "plan/collective.hpp"

namespace accord::sim {
namespace {

bool is_buffer(const plan::Chunk& chunk) {
  return chunk.space == plan::Space::kInput || chunk.space == plan::Space::kOutput;
}

bool is_packets(const plan::Chunk& chunk) { return chunk.space == plan::Space::kPackets; }

std::uint64_t key_of(const plan::Chunk& chunk) {
  return (std::uint64_t{static_cast<std::uint32_t>(chunk.rank)} << 32) |
         (std::uint64_t{static_cast<std::uint32_t>(chunk.index)} << 3) | static_cast<std::uint64_t>(chunk.space);
}

}  // namespace

StepCosts::StepCosts(const plan::Plan& plan, Rank rank, const plan::Bounds& bounds, RoundShape shape,
                     std::size_t element_bytes, std::size_t partial_bytes, const HostModel& host,
                     const topology::Topology& topology)
    : rank_(rank),
      shape_(shape),
      element_bytes_(element_bytes),
      partial_bytes_(partial_bytes),
      one_buffer_(plan::traits_of(plan.collective).one_buffer),
      host_(host),
      topology_(topology) {
  if (host.times.touched.depends_on_size() || host.cache_bytes > 0) find_working_sets(plan, bounds);
}

// The working set is that of a call for the caller's buffers, and that of the rounds in flight for scratch. The caller
// is taken to have used its buffers in the call before.
void StepCosts::find_working_sets(const plan::Plan& plan, const plan::Bounds& bounds) {
  const std::uint64_t in_flight = std::min<std::uint64_t>(shape_.rounds, shape_.depth);
  std::unordered_set<std::uint64_t> seen;
  std::uint64_t in_buffers = 0, in_scratch = 0;
  const auto use = [&](plan::Chunk chunk) {
    const auto& ranges = chunk.space == plan::Space::kInput ? bounds.input : bounds.output;
    if (one_buffer_ && chunk.space == plan::Space::kOutput) chunk.space = plan::Space::kInput;
    if (!seen.insert(key_of(chunk)).second) return;
    if (is_buffer(chunk)) {
      in_buffers += ranges[static_cast<std::size_t>(chunk.index)].count;
    } else {
      in_scratch += std::min<std::uint64_t>(bounds.longest, shape_.slice);
    }
  };
  for (const plan::Lane& lane : plan.programs[static_cast<std::size_t>(rank_)].lanes)
    for (const plan::Step& step : lane.steps) {
      for (const plan::Chunk& source : step.sources) use(source);
      for (const plan::Chunk& destination : step.destinations) use(destination);
    }
  of_buffers_ = static_cast<double>((in_buffers + in_scratch * in_flight) * element_bytes_);
  const std::uint64_t in_buffers_of_round = in_buffers / shape_.rounds;
  of_scratch_ = static_cast<double>((in_buffers_of_round + in_scratch) * in_flight * element_bytes_);
}

double StepCosts::working_set_of(const plan::Chunk& chunk) const {
  return is_buffer(chunk) ? of_buffers_ : of_scratch_;
}

bool StepCosts::is_remote(const plan::Chunk& chunk) const {
  return is_other(chunk) && topology_.host_of(chunk.rank) != topology_.host_of(rank_);
}

// A copy of the root's buffer to itself moves nothing.
bool StepCosts::stays_in_place(const plan::Step& step, const plan::Chunk& destination) const {
  const plan::Chunk& source = step.sources[0];
  return one_buffer_ && step.kind == plan::StepKind::kCopy && source.space == plan::Space::kInput &&
         destination.space == plan::Space::kOutput && source.rank == destination.rank;
}

double StepCosts::bytes_of(const plan::Chunk& chunk) const {
  return static_cast<double>(chunk.space == plan::Space::kPartials ? partial_bytes_ : element_bytes_);
}

ElementCost StepCosts::of(const plan::Step& step, std::uint64_t length) const {
  ElementCost cost;
  const double step_bytes = static_cast<double>(std::min(length, shape_.slice) * element_bytes_);
  if (shape_.reads && is_other(step.sources[0])) {
    cost.seconds = bytes_of(step.sources[0]) * host_.times.read.seconds_per_byte_of_step(step_bytes);
    use_memory(step.sources[0], 2 * bytes_of(step.sources[0]), cost);
    return cost;
  }
  for (const plan::Chunk& source : step.sources)
    if (!is_remote(source)) touch(source, false, step_bytes, cost);
  const bool reads_packets = std::any_of(step.sources.begin(), step.sources.end(), is_packets);
  if (step.kind == plan::StepKind::kReduce && reads_packets)
    cost.seconds += static_cast<double>(element_bytes_) * host_.times.packet_sums.seconds_per_byte(step_bytes);
  for (const plan::Chunk& destination : step.destinations)
    if (!is_remote(destination) && !stays_in_place(step, destination)) touch(destination, true, step_bytes, cost);
  return cost;
}

void StepCosts::touch(const plan::Chunk& chunk, bool writes, double step_bytes, ElementCost& cost) const {
  const HostTimes& times = host_.times;
  const bool has_flags = is_packets(chunk);
  double seconds = times.touched.seconds_per_byte(has_flags ? step_bytes : working_set_of(chunk));
  if (is_other(chunk)) seconds += times.exchanged.seconds_per_byte_of_step(step_bytes);
  if (has_flags) seconds += times.packets.seconds_per_byte_of_step(step_bytes);
  const bool is_published = !has_flags && writes && (is_other(chunk) || !is_buffer(chunk));
  if (is_published) seconds += times.published.seconds_per_byte_of_step(step_bytes);
  cost.seconds += bytes_of(chunk) * seconds;
  use_memory(chunk, bytes_of(chunk), cost);
}

// The caches of a host hold what its ranks use in turn, if it fits.
void StepCosts::use_memory(const plan::Chunk& chunk, double bytes, ElementCost& cost) const {
  const auto ranks = static_cast<double>(topology_.ranks_of_host(topology_.host_of(rank_)).size());
  if (host_.cache_bytes == 0 || working_set_of(chunk) * ranks > host_.cache_bytes) cost.bytes += bytes;
}

}  // namespace accord::sim
