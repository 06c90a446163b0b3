// The slice is as many elements as a scratch chunk (or a packet chunk) holds, at whole cache lines; a chunk of partials
// uses as much room as its accumulators need.
#include "exec/rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "exec/partial_sums.hpp"

namespace accord::exec {
namespace {

// Scratch and partials, counted in scratch chunks.
std::size_t shared_chunks(const plan::Plan& plan, DType dtype) {
  return static_cast<std::size_t>(plan.scratch_chunks) +
         static_cast<std::size_t>(plan.partial_chunks) * partial_width(dtype);
}

Status check_room(const plan::Plan& plan, const SharedPlaces& places, std::size_t shared) {
  const auto refuse = [&](std::string_view what, std::size_t has, std::size_t room) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("plan \"{}\" needs {} {}, but there are {}", plan.name, has, what, room));
  };
  if (plan.size != places.members) return refuse("ranks", plan.size, places.members);
  if (plan.signals > places.signals) return refuse("signals between two ranks", plan.signals, places.signals);
  if (plan.packet_chunks > places.packet_chunks)
    return refuse("packet chunks", plan.packet_chunks, places.packet_chunks);
  if (shared * places.line > places.slot_bytes)
    return refuse("scratch chunks", shared, places.slot_bytes / places.line);
  const auto multicast = static_cast<std::size_t>(plan.multicast_chunks);
  if (multicast > 0 && places.multicast_bytes == 0)
    return {StatusCode::kUnsupported,
            fmt::format("plan \"{}\" needs multicast, which only GPUs have, behind an NVSwitch", plan.name)};
  if (multicast * places.line > places.multicast_bytes)
    return refuse("multicast chunks", multicast, places.multicast_bytes / places.line);
  return {};
}

std::optional<std::uint64_t> user_length(const plan::Chunk& chunk, const plan::Bounds& bounds) {
  const auto index = static_cast<std::size_t>(chunk.index);
  if (chunk.space == plan::Space::kInput) return bounds.input[index].count;
  if (chunk.space == plan::Space::kOutput) return bounds.output[index].count;
  return std::nullopt;
}

}  // namespace

SharedPlaces places_of(const DomainLayout& layout) {
  return {.members = layout.members,
          .signals = layout.signals,
          .packet_chunks = layout.packet_chunks(),
          .slot_bytes = layout.slot_bytes,
          .packets = layout.packets(0),
          .packets_stride = layout.packets(1) - layout.packets(0)};
}

std::size_t partial_width(DType dtype) { return size_of(accumulator_of(dtype)) / size_of(dtype); }

Result<Rounds> rounds_of(const plan::Plan& plan, const SharedPlaces& places, std::size_t slot_bytes,
                         const Payload& payload) {
  const std::size_t shared = shared_chunks(plan, payload.dtype);
  const auto multicast = static_cast<std::size_t>(plan.multicast_chunks);
  const std::size_t element_bytes = size_of(payload.dtype);
  const std::uint64_t longest = payload.bounds.longest;
  ACCORD_RETURN_IF_ERROR(check_room(plan, places, shared));
  Rounds rounds{.depth = kLineDepth, .packet_data = places.packet_data};
  // Each packet chunk fits in one word, and nothing needs lines.
  const bool has_only_packets = plan.packet_chunks > 0 && plan.signals == 0 && shared == 0;
  if (places.cells && has_only_packets && std::max<std::uint64_t>(longest, 1) * element_bytes <= kCellData) {
    rounds.packets = Packets::kCells;
    rounds.packet_data = kCellData;
    rounds.depth = kCellDepth;
  }
  rounds.elements_per_line = std::max<std::size_t>(rounds.packet_data / element_bytes, 1);
  if (shared + multicast > 0) rounds.depth = plan::kRoundDepth;

  std::size_t bytes = plan.buffers != plan::Buffers::kAnywhere ? slot_bytes : SIZE_MAX;
  if (shared > 0) {
    const std::size_t each = std::min(slot_bytes, places.slot_bytes) / shared;
    bytes = rounds.scratch_stride = std::max(each / places.line * places.line, places.line);
  }
  if (multicast > 0) {
    const std::size_t each = std::min(slot_bytes, places.multicast_bytes) / multicast;
    rounds.multicast_stride = std::max(each / places.line * places.line, places.line);
    bytes = std::min(bytes, rounds.multicast_stride);
  }
  if (plan.packet_chunks > 0)
    bytes = std::min(bytes, places.packet_capacity / places.packet_data * rounds.elements_per_line * element_bytes);
  bytes = std::min(bytes, places.max_slice);
  rounds.slice = std::max<std::uint64_t>(1, std::min<std::uint64_t>(bytes / element_bytes, longest));
  rounds.count = std::max<std::uint64_t>(1, (longest + rounds.slice - 1) / rounds.slice);
  return rounds;
}

std::uint64_t length_of(const plan::Step& step, const plan::Bounds& bounds) {
  for (const auto* chunks : {&step.destinations, &step.sources})
    for (const plan::Chunk& chunk : *chunks)
      if (const auto length = user_length(chunk, bounds)) return *length;
  return bounds.longest;
}

}  // namespace accord::exec
