// Lengths, slices and rounds are those with which the executor would run the plan: it is lowered, as for a call.
#include "sim/program.hpp"

#include <unordered_map>

#include "exec/lowered.hpp"
#include "exec/window_layout.hpp"

namespace accord::sim {
namespace {

// Numbers events: a rank that notifies and one that waits get the same number.
class EventNumbers {
 public:
  std::uint32_t of_signal(Rank from, Rank to, int id) {
    return number((word(from) << 40) | (word(to) << 16) | word(id));
  }
  std::uint32_t of_packets(Rank owner, int chunk) {
    return number((kPackets << 60) | (word(owner) << 32) | word(chunk));
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(numbers_.size()); }

 private:
  static constexpr std::uint64_t kPackets = 1;
  static std::uint64_t word(int number) { return static_cast<std::uint32_t>(number); }
  std::uint32_t number(std::uint64_t key) {
    return numbers_.try_emplace(key, static_cast<std::uint32_t>(numbers_.size())).first->second;
  }
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
};

class Preparing {
 public:
  Preparing(Rank rank, const exec::LoweredPlan& lowered, std::size_t partial_bytes, const Machine& machine,
            const topology::Topology& topology, EventNumbers& events)
      : rank_(rank),
        element_bytes_(lowered.element_bytes),
        partial_bytes_(partial_bytes),
        times_(machine.host.times),
        message_seconds_(machine.has_network ? machine.network.message_seconds : 0),
        topology_(topology),
        events_(events) {}

  void add(const plan::Step& step, std::uint64_t length, std::vector<Op>& ops) {
    Op op{.peer = step.peer, .length = length, .seconds = times_.seconds_per_step};
    switch (step.kind) {
      case plan::StepKind::kSignal:
        op.event = events_.of_signal(rank_, step.peer, step.id);
        ops.push_back(notify(op));
        break;
      case plan::StepKind::kWait: ops.push_back(wait(step.peer, events_.of_signal(step.peer, rank_, step.id))); break;
      case plan::StepKind::kLaneBarrier:
        op.kind = OpKind::kBarrier;
        op.event = static_cast<std::uint32_t>(step.id);
        ops.push_back(op);
        break;
      case plan::StepKind::kCopy:
      case plan::StepKind::kReduce:
      case plan::StepKind::kPutPackets: move(step, op, ops); break;
    }
  }

 private:
  bool is_remote(Rank peer) const { return peer >= 0 && topology_.host_of(peer) != topology_.host_of(rank_); }

  Op notify(Op op) const {
    op.kind = OpKind::kNotify;
    op.is_remote = is_remote(op.peer);
    if (op.is_remote) op.seconds += message_seconds_;
    return op;
  }

  Op wait(Rank peer, std::uint32_t event) const {
    Op op{.kind = OpKind::kWait, .is_remote = is_remote(peer), .peer = peer, .event = event};
    op.seconds = times_.seconds_per_step + (op.is_remote ? message_seconds_ : 0);
    return op;
  }

  // The wait for packets is part of the step that reads them, and so costs no step of its own.
  void move(const plan::Step& step, Op op, std::vector<Op>& ops) {
    Rank remote = -1;
    const auto touch = [&](const plan::Chunk& chunk) {
      const bool is_other = chunk.rank != rank_ && chunk.rank != plan::kEveryRank;
      if (is_other && is_remote(chunk.rank)) {
        remote = chunk.rank;
        return;
      }
      const auto bytes = static_cast<double>(chunk.space == plan::Space::kPartials ? partial_bytes_ : element_bytes_);
      op.bytes_per_element += bytes;
      op.seconds_per_element += bytes * times_.seconds_per_byte_touched;
      if (is_other) op.seconds_per_element += bytes * times_.seconds_per_byte_exchanged;
      if (chunk.space == plan::Space::kPackets) op.seconds_per_element += bytes * times_.seconds_per_byte_in_packets;
    };
    for (const plan::Chunk& source : step.sources) {
      touch(source);
      if (source.space != plan::Space::kPackets) continue;
      ops.push_back(wait(source.index % topology_.size(), events_.of_packets(source.rank, source.index)));
      ops.back().seconds -= times_.seconds_per_step;
    }
    for (const plan::Chunk& destination : step.destinations) touch(destination);
    const bool puts = step.kind == plan::StepKind::kPutPackets;
    if (puts) op.event = events_.of_packets(step.destinations[0].rank, step.destinations[0].index);
    if (remote >= 0) {
      op.kind = OpKind::kSend;
      op.peer = remote;
      op.seconds += message_seconds_;
      op.bytes_per_element = static_cast<double>(element_bytes_);
    } else if (puts) {
      op.kind = OpKind::kNotify;
      op.peer = step.destinations[0].rank;
    }
    ops.push_back(op);
  }

  Rank rank_;
  std::size_t element_bytes_, partial_bytes_;
  plan::MachineTimes times_;
  double message_seconds_;
  const topology::Topology& topology_;
  EventNumbers& events_;
};

Result<Program> program_of(const plan::Plan& plan, Rank rank, const exec::RequestRecord& request,
                           std::size_t slot_bytes, const Machine& machine, const topology::Topology& topology,
                           EventNumbers& events) {
  const exec::WindowLayout window(plan.size, slot_bytes);
  const exec::DomainLayout layout = plan.collective == Collective::kSendRecv ? window.pair() : window.group();
  ACCORD_ASSIGN_OR_RETURN(const exec::LoweredPlan lowered, exec::lower(plan, rank, layout, slot_bytes, request));
  Program program;
  program.slice = lowered.slice;
  program.rounds = lowered.rounds;
  program.depth = lowered.depth;
  program.waits_for_rounds = plan.pacing == plan::Pacing::kByExecutor;
  Preparing preparing(rank, lowered, size_of(exec::accumulator_of(request.dtype)), machine, topology, events);
  const std::vector<plan::Lane>& lanes = plan.programs[static_cast<std::size_t>(rank)].lanes;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    std::vector<Op>& ops = program.lanes.emplace_back();
    for (std::size_t i = 0; i < lanes[lane].steps.size(); ++i)
      preparing.add(lanes[lane].steps[i], lowered.lanes[lane][i].length, ops);
  }
  return program;
}

}  // namespace

Result<Programs> programs_of(const plan::Plan& plan, const exec::RequestRecord& request, std::size_t slot_bytes,
                             const Machine& machine, const topology::Topology& topology) {
  Programs all;
  EventNumbers events;
  for (Rank rank = 0; rank < plan.size; ++rank) {
    ACCORD_ASSIGN_OR_RETURN(Program program, program_of(plan, rank, request, slot_bytes, machine, topology, events));
    all.programs.push_back(std::move(program));
  }
  all.events = events.size();
  return all;
}

}  // namespace accord::sim
