// A chunk of scratch for each cell that needs one, a chunk of partials for each sum and a chunk of packets for each
// put, so that a value in partials or packets is never overwritten within a round.

#include "plan/mscclpp/placement.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/rounding.hpp"

namespace accord::plan::mscclpp {
namespace {

Status unsupported_value(const Value& value, std::string_view problem) {
  return {StatusCode::kUnsupported, fmt::format("MSCCL++ plan: {}: {}", value.place, problem)};
}

}  // namespace

Placement::Placement(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options)
    : plan_(plan),
      flow_(flow),
      options_(options),
      partial_(flow.values.size(), false),
      is_sum_(flow.values.size(), false),
      multicast_(flow.values.size(), -1),
      by_switch_(flow.values.size(), false),
      scratch_(plan.gpus.size()),
      partials_(plan.gpus.size()) {
  for (std::size_t i = 0; i < flow.values.size(); ++i) {
    const int copied = flow.values[i].copy_of;
    origins_.push_back(copied < 0 ? static_cast<int>(i) : origins_[to_size(copied)]);
  }
  for (const FlowStep& step : flow.steps) {
    if (step.kind == FlowStep::Kind::kSwitch) {
      if (step.sources.size() > 1) place_in_multicast(step.sources, step.place);
      place_in_multicast(step.everywhere, step.place);
      for (const int value : step.everywhere) by_switch_[to_size(value)] = true;
    }
    if (step.kind != FlowStep::Kind::kReduce) continue;
    is_sum_[to_size(step.destination)] = true;
    for (const int source : step.sources) {
      if (is_sum_[to_size(origin(source))]) partial_[to_size(origin(source))] = true;
    }
  }
}

void Placement::place_in_multicast(const std::vector<int>& values, const std::string& place) {
  const Cell& first = at(values[0]).cell;
  const int chunk =
      multicasts_.try_emplace({first.memory, first.index}, static_cast<int>(multicasts_.size())).first->second;
  for (const int value : values) {
    multicast_[to_size(value)] = chunk;
    const Cell& cell = at(value).cell;
    if (cell.memory == first.memory && cell.index == first.index) continue;
    if (place_error_.ok())
      place_error_ = Status(
          StatusCode::kUnsupported,
          fmt::format("MSCCL++ plan: {}: in place, it is {}[{}] of rank {} and {}[{}] of rank {}", place,
                      to_string(first.memory), first.index, first.rank, to_string(cell.memory), cell.index, cell.rank));
  }
}

Status Placement::check() const {
  ACCORD_RETURN_IF_ERROR(place_error_);
  for (std::size_t i = 0; i < flow_.values.size(); ++i) {
    const int value = static_cast<int>(i);
    if (is_result(value) && is_partial(value))
      return unsupported_value(at(value),
                               "the output keeps a sum that other ops add to; a result is rounded, that sum is not");
    if (arrival(value) == Arrival::kPackets && at(value).cell.memory != Memory::kScratch)
      return unsupported_value(at(value), "packets only go to a peer's scratch");
    if (!is_in_multicast(value)) continue;
    if (is_by_switch(value) && is_read_by_peers(value))
      return unsupported_value(at(value), "a peer reads by itself what a switch has written");
    if (!is_by_switch(value) && !is_input(value) && (at(value).writer != at(value).cell.rank || at(value).in_packets))
      return unsupported_value(at(value), "a switch adds up what a peer has written, or packets");
    if (!is_by_switch(value) && is_partial(value))
      return unsupported_value(at(value), "a switch adds up sums that other ops add to");
  }
  return {};
}

Arrival Placement::arrival(int value) const {
  if (!at(value).in_packets) return Arrival::kNone;
  return at(value).writer == at(value).cell.rank || is_alias(value) ? Arrival::kEvent : Arrival::kPackets;
}

bool Placement::is_read_from_packets(int value) const {
  const std::vector<std::size_t>& readers = at(value).readers;
  if (readers.size() != 1) return false;
  const FlowStep& step = flow_.steps[readers[0]];
  if (arrival(step.destination) == Arrival::kPackets || is_partial(step.destination)) return false;
  if (at(step.destination).cell.rank != step.rank) return false;
  return std::ranges::none_of(step.sources, [&](int source) { return is_partial(source); });
}

bool Placement::is_read_by_peers(int value) const {
  return std::ranges::any_of(at(value).readers, [&](std::size_t reader) {
    const FlowStep& step = flow_.steps[reader];
    return step.rank != at(value).cell.rank && step.kind != FlowStep::Kind::kSwitch && !is_alias(step.destination);
  });
}

bool Placement::is_in_scratch(int value) const {
  const Value& it = at(value);
  if (is_in_multicast(value)) return is_read_by_peers(value);
  if (is_input(value)) return is_read_by_peers(value) || (options_.stage_inputs && !it.readers.empty());
  return it.cell.memory != Memory::kOutput || it.writer != it.cell.rank || is_read_by_peers(value);
}

bool Placement::is_in_output(int value) const {
  const Value& it = at(value);
  return it.cell.memory == Memory::kOutput && !is_input(value) && it.writer == it.cell.rank && !is_by_switch(value);
}

Chunk Placement::scratch_of(const Cell& cell) {
  std::map<Cell, int>& chunks = scratch_[to_size(cell.rank)];
  return scratch(cell.rank, chunks.try_emplace(cell, static_cast<int>(chunks.size())).first->second);
}

Chunk Placement::place(int value, Rank rank) {
  if (is_partial(value)) {
    const int sum = origin(value);
    std::map<int, int>& chunks = partials_[to_size(at(sum).cell.rank)];
    return partials(at(sum).cell.rank, chunks.try_emplace(sum, static_cast<int>(chunks.size())).first->second);
  }
  const Cell& cell = at(value).cell;
  if (rank == cell.rank && is_input(value) && !options_.stage_inputs) return input(rank, at(value).input_chunk);
  if (rank == cell.rank && is_in_output(value)) return output(rank, cell.index);
  if (rank == cell.rank && is_in_multicast(value)) return multicast(rank, multicast_of(value));
  return scratch_of(cell);
}

std::vector<Chunk> Placement::destinations(int value) {
  const Cell& cell = at(value).cell;
  if (is_partial(value)) return {place(value, cell.rank)};
  if (is_by_switch(value)) return {multicast(kEveryRank, multicast_of(value))};
  std::vector<Chunk> chunks;
  if (is_in_output(value)) chunks.push_back(output(cell.rank, cell.index));
  if (is_in_scratch(value)) chunks.push_back(scratch_of(cell));
  if (is_in_multicast(value)) chunks.push_back(multicast(cell.rank, multicast_of(value)));
  return chunks;
}

std::optional<std::pair<Chunk, std::vector<Chunk>>> Placement::copy_before(int value) {
  if (!is_input(value)) return std::nullopt;
  const Cell& cell = at(value).cell;
  std::vector<Chunk> chunks;
  if (is_result(value)) chunks.push_back(output(cell.rank, cell.index));
  if (is_in_scratch(value)) chunks.push_back(scratch_of(cell));
  if (is_in_multicast(value)) chunks.push_back(multicast(cell.rank, multicast_of(value)));
  if (chunks.empty()) return std::nullopt;
  return std::pair(input(cell.rank, at(value).input_chunk), chunks);
}

std::optional<std::pair<Chunk, std::vector<Chunk>>> Placement::copy_after(int value) {
  if (!is_result(value) || is_input(value) || is_in_output(value)) return std::nullopt;
  const Cell& cell = at(value).cell;
  return std::pair(place(value, cell.rank), std::vector{output(cell.rank, cell.index)});
}

Chunk Placement::packets(int value) {
  const Rank to = at(value).cell.rank, from = at(value).writer;
  const auto [chunk, is_new] = packets_.try_emplace(value, 0);
  if (is_new) chunk->second = from + plan_.size() * packet_count_[{to, from}]++;
  return plan::packets(to, chunk->second);
}

Shape Placement::shape() const {
  Shape shape{.input_chunks = plan_.input_chunks,
              .output_chunks = plan_.output_chunks,
              .multicast_chunks = static_cast<int>(multicasts_.size())};
  for (const auto& chunks : scratch_)
    shape.scratch_chunks = std::max(shape.scratch_chunks, static_cast<int>(chunks.size()));
  for (const auto& chunks : partials_)
    shape.partial_chunks = std::max(shape.partial_chunks, static_cast<int>(chunks.size()));
  for (const auto& [pair, count] : packet_count_)
    shape.packet_chunks = std::max(shape.packet_chunks, count * plan_.size());
  return shape;
}

}  // namespace accord::plan::mscclpp
