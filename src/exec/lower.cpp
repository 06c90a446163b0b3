// Lowering resolves a plan's symbols once for a request, so that running it looks nothing up:
//   1. the slice: as many elements as a scratch chunk (or a packet chunk) holds, at whole cache lines; a chunk of
//      partials uses as much room as its accumulators need;
//   2. every chunk becomes base + offset; the length of a step comes from the caller's chunk that it touches;
//   3. every signal and wait becomes the address of its flag, every reduction its kernel.
// Offsets into the caller's buffers are those of round 0; the executor advances these two bases by a slice per round.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "exec/lowered.hpp"
#include "plan/bounds.hpp"

namespace accord::exec {
namespace {

std::atomic<std::uint64_t> lowered_plans = 0;

class Lowering {
 public:
  Lowering(const plan::Plan& plan, int me, const SharedPlaces& places, const RequestRecord& request, Payload payload)
      : plan_(plan),
        me_(me),
        places_(places),
        request_(request),
        dtype_(payload.dtype),
        bounds_(std::move(payload.bounds)) {}

  Result<LoweredPlan> run(std::size_t slot_bytes) {
    ACCORD_RETURN_IF_ERROR(check());
    out_.number = lowered_plans.fetch_add(1, std::memory_order_relaxed) + 1;
    out_.element_bytes = size_of(dtype_);
    out_.packet_data = places_.packet_data;
    if (fits_cells()) {
      out_.packets = Packets::kCells;
      out_.packet_data = kCellData;
      out_.depth = kCellDepth;
    }
    out_.elements_per_line = std::max<std::size_t>(out_.packet_data / out_.element_bytes, 1);
    out_.record = request_;
    out_.in_windows = plan_.buffers != plan::Buffers::kAnywhere;
    out_.reads = out_.in_windows && request_.phase != Phase::kRegistered;
    if (shared_chunks() + multicast_chunks() > 0) out_.depth = plan::kRoundDepth;
    out_.reaches_all = plan_.pacing == plan::Pacing::kByPlan;
    if (plan_.partial_chunks > 0) {
      out_.partials = partial_kernels(dtype_, request_.op);
      if (out_.partials.reduce != nullptr && (out_.partials.widen == nullptr || out_.partials.narrow == nullptr))
        return Status(StatusCode::kUnsupported,
                      fmt::format("plan \"{}\" has no partial sums of {}", plan_.name, accord::to_string(dtype_)));
    }
    choose_slice(slot_bytes);
    out_.signature = signature_of(request_, plan_.name, plan_.digest ^ scratch_stride_ ^ multicast_stride_);
    if (plan_.order != plan::Order::kNone) {
      out_.reduce = kernels::reduce_kernel(dtype_, request_.op);
      if (out_.reduce == nullptr)
        return Status(StatusCode::kUnsupported, fmt::format("{} has no {} for {}", to_string(plan_.collective),
                                                            accord::to_string(request_.op), accord::to_string(dtype_)));
      out_.scales = request_.op == ReduceOp::kPremulSum;
    }
    for (const plan::Lane& lane : plan_.programs[me_].lanes) {
      auto& steps = out_.lanes.emplace_back();
      for (const plan::Step& step : lane.steps) {
        ACCORD_RETURN_IF_ERROR(check_adds_all(step));
        steps.push_back(lower_step(step));
      }
    }
    return std::move(out_);
  }

 private:
  Status check() const {
    const auto refuse = [this](std::string_view what, std::size_t has, std::size_t room) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("plan \"{}\" needs {} {}, but there are {}", plan_.name, has, what, room));
    };
    if (plan_.buffers != plan::Buffers::kAnywhere && request_.phase != Phase::kRegistered && !only_reads())
      return {StatusCode::kInvalidArgument,
              fmt::format("plan \"{}\" needs the buffers of all ranks to be in windows", plan_.name)};
    if (plan_.size != places_.members) return refuse("ranks", plan_.size, places_.members);
    if (plan_.signals > places_.signals) return refuse("signals between two ranks", plan_.signals, places_.signals);
    if (plan_.packet_chunks > places_.packet_chunks)
      return refuse("packet chunks", plan_.packet_chunks, places_.packet_chunks);
    if (plan_.programs[me_].lanes.empty() && plan_.size > 1) return refuse("programs", 1, 0);
    if (shared_chunks() * places_.line > places_.slot_bytes)
      return refuse("scratch chunks", shared_chunks(), places_.slot_bytes / places_.line);
    if (plan_.multicast_chunks > 0 && places_.multicast_bytes == 0)
      return {StatusCode::kUnsupported,
              fmt::format("plan \"{}\" needs multicast, which only GPUs have, behind an NVSwitch", plan_.name)};
    if (multicast_chunks() * places_.line > places_.multicast_bytes)
      return refuse("multicast chunks", multicast_chunks(), places_.multicast_bytes / places_.line);
    return {};
  }

  // Its only accesses to peers' buffers are copies of their inputs.
  bool only_reads() const {
    const auto is_theirs = [this](const plan::Chunk& chunk) {
      return chunk.rank != me_ && (chunk.space == plan::Space::kInput || chunk.space == plan::Space::kOutput);
    };
    for (const plan::Lane& lane : plan_.programs[me_].lanes)
      for (const plan::Step& step : lane.steps) {
        if (std::any_of(step.destinations.begin(), step.destinations.end(), is_theirs)) return false;
        if (std::none_of(step.sources.begin(), step.sources.end(), is_theirs)) continue;
        const bool copies = step.kind == plan::StepKind::kCopy && step.destinations.size() == 1;
        if (!copies || step.sources[0].space != plan::Space::kInput) return false;
      }
    return true;
  }

  // Number of scratch chunks in the room of a chunk of partials.
  std::size_t partial_width() const { return size_of(accumulator_of(dtype_)) / size_of(dtype_); }
  // Scratch and partials, counted in scratch chunks.
  std::size_t shared_chunks() const {
    return static_cast<std::size_t>(plan_.scratch_chunks) +
           static_cast<std::size_t>(plan_.partial_chunks) * partial_width();
  }

  std::size_t multicast_chunks() const { return static_cast<std::size_t>(plan_.multicast_chunks); }

  // avg divides and premul_sum multiplies where all inputs, and nothing but inputs, are added: a canonical sum with
  // as many sources as there are ranks.
  Status check_adds_all(const plan::Step& step) const {
    const bool adds_up_to_more = request_.op == ReduceOp::kAvg || request_.op == ReduceOp::kPremulSum;
    if (!adds_up_to_more || plan_.order == plan::Order::kNone || step.kind != plan::StepKind::kReduce) return {};
    const bool adds_all = step.sources.size() == static_cast<std::size_t>(plan_.size);
    if (adds_all && plan_.order == plan::Order::kCanonical && plan_.partial_chunks == 0) return {};
    return Status(StatusCode::kUnsupported,
                  fmt::format("plan \"{}\" adds only some ranks at a time; {} needs a plan that adds all at once",
                              plan_.name, accord::to_string(request_.op)));
  }

  // Each packet chunk fits in one word, and nothing needs lines.
  bool fits_cells() const {
    if (!places_.cells || plan_.packet_chunks == 0 || plan_.signals > 0 || shared_chunks() > 0) return false;
    return std::max<std::uint64_t>(bounds_.longest, 1) * out_.element_bytes <= kCellData;
  }

  void choose_slice(std::size_t slot_bytes) {
    std::size_t bytes = out_.in_windows ? slot_bytes : SIZE_MAX;
    if (shared_chunks() > 0) {
      const std::size_t each = std::min(slot_bytes, places_.slot_bytes) / shared_chunks();
      bytes = std::max(each / places_.line * places_.line, places_.line);
      scratch_stride_ = bytes;
    }
    if (multicast_chunks() > 0) {
      const std::size_t each = std::min(slot_bytes, places_.multicast_bytes) / multicast_chunks();
      multicast_stride_ = std::max(each / places_.line * places_.line, places_.line);
      bytes = std::min(bytes, multicast_stride_);
    }
    if (plan_.packet_chunks > 0)
      bytes =
          std::min(bytes, places_.packet_capacity / places_.packet_data * out_.elements_per_line * out_.element_bytes);
    bytes = std::min(bytes, places_.max_slice);
    out_.slice = std::max<std::uint64_t>(1, std::min<std::uint64_t>(bytes / out_.element_bytes, bounds_.longest));
    out_.rounds = std::max<std::uint64_t>(1, (bounds_.longest + out_.slice - 1) / out_.slice);
  }

  Operand operand(const plan::Chunk& chunk) const {
    const auto index = static_cast<std::size_t>(chunk.index);
    const bool own = chunk.rank == me_;
    switch (chunk.space) {
      case plan::Space::kInput:
        return {bounds_.input[index].first * out_.element_bytes,
                own ? Operand::kInput : Operand::input_of(chunk.rank, plan_.size)};
      case plan::Space::kOutput:
        return {bounds_.output[index].first * out_.element_bytes,
                own ? Operand::kOutput : Operand::output_of(chunk.rank, plan_.size)};
      case plan::Space::kScratch: return {index * scratch_stride_, Operand::slot_of(chunk.rank)};
      case plan::Space::kPartials: {
        const std::size_t place = static_cast<std::size_t>(plan_.scratch_chunks) + index * partial_width();
        return {.offset = place * scratch_stride_,
                .base = Operand::slot_of(chunk.rank),
                .partial = out_.partials.reduce != nullptr};
      }
      case plan::Space::kMulticast: return {index * multicast_stride_, Operand::multicast_of(!own, plan_.size)};
      case plan::Space::kPackets: break;
    }
    return {.offset = out_.packets == Packets::kCells
                          ? DomainLayout::cell(chunk.index)
                          : places_.packets + places_.packets_stride * static_cast<std::size_t>(chunk.index),
            .base = Operand::lines_of(chunk.rank),
            .packets = true,
            .sender = chunk.index % plan_.size};
  }

  std::optional<std::uint64_t> user_length(const plan::Chunk& chunk) const {
    const auto index = static_cast<std::size_t>(chunk.index);
    if (chunk.space == plan::Space::kInput) return bounds_.input[index].count;
    if (chunk.space == plan::Space::kOutput) return bounds_.output[index].count;
    return std::nullopt;
  }

  std::size_t flag(Rank from, int id) const {
    return places_.flag_stride *
           (static_cast<std::size_t>(from) * static_cast<std::size_t>(places_.signals) + static_cast<std::size_t>(id));
  }

  // Elements that a step handles: those of the caller's chunk in it; between scratch chunks, the longest chunk.
  std::uint64_t length_of(const plan::Step& step) const {
    for (const auto* chunks : {&step.destinations, &step.sources})
      for (const plan::Chunk& chunk : *chunks)
        if (const auto length = user_length(chunk)) return *length;
    return bounds_.longest;
  }

  LoweredStep lower_step(const plan::Step& step) {
    LoweredStep lowered;
    lowered.length = length_of(step);
    lowered.peer = step.peer;
    lowered.first_source = static_cast<std::uint32_t>(out_.operands.size());
    lowered.sources = static_cast<std::uint16_t>(step.sources.size());
    out_.max_sources = std::max(out_.max_sources, static_cast<int>(step.sources.size()));
    bool packets = false, partial = false;
    for (const plan::Chunk& source : step.sources) {
      out_.operands.push_back(operand(source));
      packets |= source.space == plan::Space::kPackets;
      partial |= out_.operands.back().partial;
    }
    if (!step.destinations.empty()) lowered.destination = operand(step.destinations[0]);
    if (step.destinations.size() > 1) {
      lowered.mirror = operand(step.destinations[1]);
      lowered.has_mirror = true;
    }
    partial |= lowered.destination.partial || lowered.mirror.partial;
    switch (step.kind) {
      case plan::StepKind::kCopy:
        lowered.opcode = packets ? Opcode::kCopyPackets : partial ? Opcode::kReducePartials : Opcode::kCopy;
        if (out_.reads && step.sources[0].rank != me_) {
          lowered.opcode = Opcode::kCopyFromPeer;
          lowered.peer = step.sources[0].rank;
        }
        if (out_.scales && plan_.size == 1) lowered.opcode = Opcode::kReduce;  // the sum of one rank
        break;
      case plan::StepKind::kReduce:
        lowered.opcode = packets ? Opcode::kReducePackets : partial ? Opcode::kReducePartials : Opcode::kReduce;
        break;
      case plan::StepKind::kPutPackets: lowered.opcode = Opcode::kPutPackets; break;
      case plan::StepKind::kSignal:
        lowered.opcode = out_.in_windows ? Opcode::kSignalPlaces : Opcode::kSignal;
        lowered.destination = {flag(me_, step.id), Operand::lines_of(step.peer)};
        break;
      case plan::StepKind::kWait:
        lowered.opcode = out_.in_windows ? Opcode::kWaitPlaces : Opcode::kWait;
        lowered.destination = {flag(step.peer, step.id), Operand::lines_of(me_)};
        break;
      case plan::StepKind::kLaneBarrier:
        lowered.opcode = Opcode::kLaneBarrier;
        lowered.barrier = static_cast<std::uint32_t>(step.id);
        out_.barriers = std::max(out_.barriers, lowered.barrier + 1);
        break;
    }
    return lowered;
  }

  const plan::Plan& plan_;
  int me_;
  const SharedPlaces& places_;
  RequestRecord request_;
  DType dtype_;
  plan::Bounds bounds_;
  std::size_t scratch_stride_ = 0, multicast_stride_ = 0;
  LoweredPlan out_;
};

}  // namespace

Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request) {
  return lower(plan, me, layout, slot_bytes, request,
               {request.dtype, plan::bounds_of(plan, request.count, size_of(request.dtype))});
}

SharedPlaces places_of(const DomainLayout& layout) {
  return {.members = layout.members,
          .signals = layout.signals,
          .packet_chunks = layout.packet_chunks(),
          .slot_bytes = layout.slot_bytes,
          .packets = layout.packets(0),
          .packets_stride = layout.packets(1) - layout.packets(0)};
}

Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request, Payload payload) {
  return lower(plan, me, places_of(layout), slot_bytes, request, std::move(payload));
}

Result<LoweredPlan> lower(const plan::Plan& plan, int me, const SharedPlaces& places, std::size_t slot_bytes,
                          const RequestRecord& request, Payload payload) {
  return Lowering(plan, me, places, request, std::move(payload)).run(slot_bytes);
}

}  // namespace accord::exec
