// Lowering resolves a plan's symbols once for a request, so that running it looks nothing up:
//   1. the rounds: see exec/rounds.hpp;
//   2. every chunk becomes base + offset; the length of a step comes from the caller's chunk that it touches;
//   3. every signal and wait becomes the address of its flag, every reduction its kernel.
// Offsets into the caller's buffers are those of round 0; the executor advances these two bases by a slice per round.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "exec/lowered.hpp"
#include "plan/bounds.hpp"

namespace accord::exec {
namespace {

std::atomic<std::uint64_t> lowered_plans = 0;

class Lowering {
 public:
  Lowering(const plan::Plan& plan, int me, const SharedPlaces& places, const RequestRecord& request, Payload payload)
      : plan_(plan), me_(me), places_(places), request_(request), payload_(std::move(payload)) {}

  Result<LoweredPlan> run(std::size_t slot_bytes) {
    ACCORD_ASSIGN_OR_RETURN(rounds_, rounds_of(plan_, places_, slot_bytes, payload_));
    ACCORD_RETURN_IF_ERROR(check());
    out_.number = lowered_plans.fetch_add(1, std::memory_order_relaxed) + 1;
    out_.element_bytes = size_of(payload_.dtype);
    out_.slice = rounds_.slice;
    out_.rounds = rounds_.count;
    out_.depth = rounds_.depth;
    out_.packets = rounds_.packets;
    out_.packet_data = rounds_.packet_data;
    out_.elements_per_line = rounds_.elements_per_line;
    out_.record = request_;
    out_.in_windows = plan_.buffers != plan::Buffers::kAnywhere;
    out_.reads = out_.in_windows && request_.phase != Phase::kRegistered;
    out_.reaches_all = plan_.pacing == plan::Pacing::kByPlan;
    if (plan_.partial_chunks > 0) {
      out_.partials = partial_kernels(payload_.dtype, request_.op);
      if (out_.partials.reduce != nullptr && (out_.partials.widen == nullptr || out_.partials.narrow == nullptr))
        return Status(StatusCode::kUnsupported, fmt::format("plan \"{}\" has no partial sums of {}", plan_.name,
                                                            accord::to_string(payload_.dtype)));
    }
    out_.signature =
        signature_of(request_, plan_.name, plan_.digest ^ rounds_.scratch_stride ^ rounds_.multicast_stride);
    if (plan_.order != plan::Order::kNone) {
      out_.reduce = kernels::reduce_kernel(payload_.dtype, request_.op);
      if (out_.reduce == nullptr)
        return Status(StatusCode::kUnsupported,
                      fmt::format("{} has no {} for {}", to_string(plan_.collective), accord::to_string(request_.op),
                                  accord::to_string(payload_.dtype)));
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
    if (plan_.buffers != plan::Buffers::kAnywhere && request_.phase != Phase::kRegistered && !only_reads())
      return {StatusCode::kInvalidArgument,
              fmt::format("plan \"{}\" needs the buffers of all ranks to be in windows", plan_.name)};
    if (plan_.programs[me_].lanes.empty() && plan_.size > 1)
      return {StatusCode::kInvalidArgument, fmt::format("plan \"{}\" has no program for rank {}", plan_.name, me_)};
    if (plan_.size > Operand::kMaxMembers)
      return {StatusCode::kUnsupported, fmt::format("plan \"{}\" is for {} ranks, but at most {} can run one",
                                                    plan_.name, plan_.size, Operand::kMaxMembers)};
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

  Operand operand(const plan::Chunk& chunk) const {
    const auto index = static_cast<std::size_t>(chunk.index);
    const bool own = chunk.rank == me_;
    switch (chunk.space) {
      case plan::Space::kInput:
        return {payload_.bounds.input[index].first * out_.element_bytes,
                own ? Operand::kInput : Operand::input_of(chunk.rank, plan_.size)};
      case plan::Space::kOutput:
        return {payload_.bounds.output[index].first * out_.element_bytes,
                own ? Operand::kOutput : Operand::output_of(chunk.rank, plan_.size)};
      case plan::Space::kScratch: return {index * rounds_.scratch_stride, Operand::slot_of(chunk.rank)};
      case plan::Space::kPartials: {
        const std::size_t place =
            static_cast<std::size_t>(plan_.scratch_chunks) + index * partial_width(payload_.dtype);
        return {.offset = place * rounds_.scratch_stride,
                .base = Operand::slot_of(chunk.rank),
                .partial = out_.partials.reduce != nullptr};
      }
      case plan::Space::kMulticast: return {index * rounds_.multicast_stride, Operand::multicast_of(!own, plan_.size)};
      case plan::Space::kPackets: break;
    }
    return {.offset = out_.packets == Packets::kCells
                          ? DomainLayout::cell(chunk.index)
                          : places_.packets + places_.packets_stride * static_cast<std::size_t>(chunk.index),
            .base = Operand::lines_of(chunk.rank),
            .packets = true,
            .sender = chunk.index % plan_.size};
  }

  std::size_t flag(Rank from, int id) const {
    return places_.flag_stride *
           (static_cast<std::size_t>(from) * static_cast<std::size_t>(places_.signals) + static_cast<std::size_t>(id));
  }

  LoweredStep lower_step(const plan::Step& step) {
    LoweredStep lowered;
    lowered.length = length_of(step, payload_.bounds);
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
  Payload payload_;
  Rounds rounds_;
  LoweredPlan out_;
};

}  // namespace

Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request) {
  return lower(plan, me, layout, slot_bytes, request,
               {request.dtype, plan::bounds_of(plan, request.count, size_of(request.dtype))});
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
