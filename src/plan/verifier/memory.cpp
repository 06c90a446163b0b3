// The caller's buffers have a cell for each chunk and round (a round works on its own slice); scratch, partials,
// packets and multicast have kRoundDepth. In place, a chunk of one buffer is a chunk of the other. Which one follows
// from their counts, since check_shape() only allows counts for which the two cover the same elements for every count
// and slice.
//
//   both divided, or neither   output[c] is input[c]
//   output divided             input[j] of rank r is output[r * k + j], with k input chunks
//   input divided              output[j] of rank r is input[r * k + j], with k output chunks
//
// A rank that has only one of the two buffers shares nothing.

#include "plan/verifier/memory.hpp"

#include "base/rounding.hpp"

namespace accord::plan {
namespace {}  // namespace

Memory::Memory(const Plan& plan, Aliasing aliasing, int rounds, Expressions& expressions)
    : plan_(plan),
      in_place_(aliasing == Aliasing::kInPlace || traits_of(plan.collective).one_buffer),
      rounds_(to_size(rounds)) {
  cells_per_rank_ = rounds_ * to_size(plan.input_chunks + plan.output_chunks) +
                    to_size(kRoundDepth) *
                        to_size(plan.scratch_chunks + plan.packet_chunks + plan.partial_chunks + plan.multicast_chunks);
  cells_.resize(cells_per_rank_ * to_size(plan.size));
  for (Rank rank = 0; rank < plan.size; ++rank) {
    for (int c = 0; c < plan.input_chunks; ++c) {
      for (int round = 0; round < rounds; ++round) {
        Cell& initial = cell({rank, Space::kInput, c}, round);
        initial.value = expressions.leaf({rank, c, round});
        initial.length_class = c % length_classes(plan);
        initial.written_round = round;
      }
    }
  }
}

Chunk Memory::owner(const Chunk& chunk) const {
  const CollectiveTraits& traits = traits_of(plan_.collective);
  if (!in_place_ || !holds(traits.input, chunk.rank, plan_.root) || !holds(traits.output, chunk.rank, plan_.root))
    return chunk;
  if (traits.input.divided == traits.output.divided) {
    return chunk.space == Space::kOutput ? Chunk{chunk.rank, Space::kInput, chunk.index} : chunk;
  }
  if (traits.output.divided && chunk.space == Space::kInput) {
    return {chunk.rank, Space::kOutput, chunk.rank * plan_.input_chunks + chunk.index};
  }
  if (traits.input.divided && chunk.space == Space::kOutput) {
    return {chunk.rank, Space::kInput, chunk.rank * plan_.output_chunks + chunk.index};
  }
  return chunk;
}

std::size_t Memory::index(const Chunk& chunk, int round) const {
  const Chunk own = owner(chunk);
  const std::size_t shared_round = to_size(round) % kRoundDepth;
  std::size_t at = to_size(own.rank) * cells_per_rank_;
  if (own.space == Space::kInput) return at + to_size(round) * to_size(plan_.input_chunks) + to_size(own.index);
  at += rounds_ * to_size(plan_.input_chunks);
  if (own.space == Space::kOutput) return at + to_size(round) * to_size(plan_.output_chunks) + to_size(own.index);
  at += rounds_ * to_size(plan_.output_chunks);
  if (own.space == Space::kScratch) return at + shared_round * to_size(plan_.scratch_chunks) + to_size(own.index);
  at += to_size(kRoundDepth) * to_size(plan_.scratch_chunks);
  if (own.space == Space::kPackets) return at + shared_round * to_size(plan_.packet_chunks) + to_size(own.index);
  at += to_size(kRoundDepth) * to_size(plan_.packet_chunks);
  if (own.space == Space::kPartials) return at + shared_round * to_size(plan_.partial_chunks) + to_size(own.index);
  at += to_size(kRoundDepth) * to_size(plan_.partial_chunks);
  return at + shared_round * to_size(plan_.multicast_chunks) + to_size(own.index);
}

std::optional<Access> Memory::read(Cell& cell, const Access& access, const Clocks& clocks) {
  const int lane = access.epoch.lane;
  if (cell.writer && !clocks.knows(lane, cell.writer->epoch)) return cell.writer;
  for (Access& reader : cell.readers) {
    if (reader.epoch.lane != lane) continue;
    reader = access;
    return std::nullopt;
  }
  cell.readers.push_back(access);
  return std::nullopt;
}

std::optional<Access> Memory::write(Cell& cell, const Access& access, const Clocks& clocks) {
  const int lane = access.epoch.lane;
  if (cell.writer && !clocks.knows(lane, cell.writer->epoch)) return cell.writer;
  for (const Access& reader : cell.readers) {
    if (!clocks.knows(lane, reader.epoch)) return reader;
  }
  cell.readers.clear();
  cell.writer = access;
  return std::nullopt;
}

}  // namespace accord::plan
