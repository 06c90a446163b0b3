// Lengths, slices and rounds are those with which the executor would run the plan.
#include "sim/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <unordered_map>

#include "base/hash.hpp"
#include "exec/rounds.hpp"
#include "exec/window_layout.hpp"
#include "sim/network.hpp"
#include "sim/step_costs.hpp"

namespace accord::sim {
namespace {

// Numbers of signals from the view of one rank: the order in which it first uses the ids of each peer, which does not
// change when all ranks are shifted. The plan's own ids may.
class Ordinals {
 public:
  int of(Rank peer, bool sends, int id) {
    const std::uint64_t pair =
        (static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 33) | (std::uint64_t{sends} << 32);
    const auto [known, is_new] = ordinals_.try_emplace(pair | static_cast<std::uint32_t>(id), 0);
    if (is_new) known->second = used_[pair]++;
    return known->second;
  }

 private:
  std::unordered_map<std::uint64_t, int> ordinals_;
  std::unordered_map<std::uint64_t, int> used_;
};

// Numbers of what two ranks have in common. Both ranks get the same number, and so do those for which they stand.
class Numbers {
 public:
  Numbers(int ranks, int period) : ranks_(ranks), period_(period) {}

  std::uint32_t of_signal(Rank from, Rank to, int id) { return number(0, to, from, id); }
  std::uint32_t of_packets(Rank owner, int chunk) { return number(1, owner, chunk % ranks_, chunk / ranks_); }
  std::uint32_t size() const { return static_cast<std::uint32_t>(numbers_.size()); }
  /// From now on a pair without a number gets kNone.
  void freeze() { is_frozen_ = true; }

 private:
  static std::uint64_t word(int number) { return static_cast<std::uint32_t>(number); }

  // Shifts both ranks so that `here` is one of the first. 20 bits are enough for a rank (plan::kMaxSize).
  std::uint32_t number(std::uint64_t kind, Rank here, Rank there, int id) {
    const Rank shift = here - here % period_;
    const std::uint64_t key =
        (kind << 63) | (word(here - shift) << 42) | (word((there - shift + ranks_) % ranks_) << 22) | word(id);
    if (is_frozen_) {
      const auto known = numbers_.find(key);
      return known == numbers_.end() ? kNone : known->second;
    }
    return numbers_.try_emplace(key, size()).first->second;
  }

  int ranks_, period_;
  bool is_frozen_ = false;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
};

// Translates the steps of one rank, shifted so that it is one of the first.
class Preparing {
 public:
  Preparing(Rank rank, int period, const exec::Payload& payload, const StepCosts& costs, const Machine& machine,
            const topology::Topology& topology, Numbers& events)
      : rank_(rank),
        shift_(rank - rank % period),
        is_folded_(period < topology.size()),
        payload_(payload),
        costs_(costs),
        seconds_per_step_(machine.host.times.seconds_per_step),
        message_seconds_(machine.has_network ? machine.network.message_seconds : 0),
        topology_(topology),
        events_(events) {}

  void begin_lane() { gathering_.clear(); }

  void add(const plan::Step& step, Lane& ops) {
    Op op{.length = exec::length_of(step, payload_.bounds), .seconds = seconds_per_step_};
    switch (step.kind) {
      case plan::StepKind::kSignal: ops.push_back(notify(op, step)); break;
      case plan::StepKind::kWait: ops.push_back(wait(step.peer, event_of(step.peer, rank_, step.id))); break;
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

  /// Adds up to 0 over all ranks if sender and receiver of each signal give it the same ordinal.
  std::uint64_t disagreement() const { return disagreement_; }

 private:
  bool is_remote(Rank peer) const { return topology_.host_of(peer) != topology_.host_of(rank_); }
  Rank shifted(Rank peer) const { return (peer - shift_ + topology_.size()) % topology_.size(); }

  std::uint32_t event_of(Rank from, Rank to, int id) {
    if (!is_folded_) return events_.of_signal(from, to, id);
    const bool sends = from == rank_;
    const int ordinal = ordinals_.of(sends ? to : from, sends, id);
    const std::array<std::int64_t, 4> signal = {from, to, id, ordinal};
    const std::uint64_t hash = xxh3(std::as_bytes(std::span(signal)));
    disagreement_ += sends ? hash : 0 - hash;
    if (from == to) disagreement_ += 0 - hash;  // both sides are this rank's
    return events_.of_signal(from, to, ordinal);
  }

  Op notify(Op op, const plan::Step& step) {
    op.kind = OpKind::kNotify;
    op.peer = shifted(step.peer);
    op.event = event_of(rank_, step.peer, step.id);
    op.is_remote = is_remote(step.peer);
    if (op.is_remote) op.seconds += seconds_of_message_to(step.peer);
    return op;
  }

  // A rank gathers into one message everything that it writes for another one before it waits.
  double seconds_of_message_to(Rank peer) {
    if (std::find(gathering_.begin(), gathering_.end(), peer) != gathering_.end()) return 0;
    gathering_.push_back(peer);
    return message_seconds_;
  }

  Op wait(Rank peer, std::uint32_t event) {
    gathering_.clear();
    Op op{.kind = OpKind::kWait, .is_remote = is_remote(peer), .event = event};
    op.seconds = seconds_per_step_ + (op.is_remote ? message_seconds_ : 0);
    return op;
  }

  // The wait for packets is part of the step that reads them, and so costs no step of its own.
  void move(const plan::Step& step, Op op, Lane& ops) {
    for (const plan::Chunk& source : step.sources) {
      if (source.space != plan::Space::kPackets) continue;
      ops.push_back(wait(source.index % topology_.size(), events_.of_packets(source.rank, source.index)));
      ops.back().seconds -= seconds_per_step_;
    }
    const ElementCost cost = costs_.of(step, op.length);
    op.seconds_per_element = cost.seconds;
    op.bytes_per_element = cost.bytes;
    std::optional<Rank> remote;
    for (const plan::Chunk& destination : step.destinations)
      if (destination.rank != plan::kEveryRank && is_remote(destination.rank)) remote = destination.rank;
    const bool puts = step.kind == plan::StepKind::kPutPackets;
    if (puts) op.event = events_.of_packets(step.destinations[0].rank, step.destinations[0].index);
    if (remote) {
      op.kind = OpKind::kSend;
      op.is_remote = true;
      op.peer = shifted(*remote);
      op.seconds += seconds_of_message_to(*remote);
      op.bytes_per_element = static_cast<double>(size_of(payload_.dtype));
    } else if (puts) {
      op.kind = OpKind::kNotify;
      op.peer = shifted(step.destinations[0].rank);
    }
    ops.push_back(op);
  }

  Rank rank_;
  Rank shift_;
  bool is_folded_;
  Ordinals ordinals_;
  std::uint64_t disagreement_ = 0;
  const exec::Payload& payload_;
  const StepCosts& costs_;
  double seconds_per_step_;
  std::vector<Rank> gathering_;  // ranks that have a message under way, in the lane that is being prepared
  double message_seconds_;
  const topology::Topology& topology_;
  Numbers& events_;
};

// Programs of `period` ranks.
class Preparation {
 public:
  Preparation(const Call& call, const Machine& machine, const topology::Topology& topology, int period)
      : call_(call), machine_(machine), topology_(topology), period_(period), events_(topology.size(), period) {}

  /// Takes the counts of the plan, which all ranks have in common.
  Status begin(const plan::Plan& plan) {
    const exec::WindowLayout window(plan.size, call_.slot_bytes);
    const exec::DomainLayout layout = plan.collective == Collective::kSendRecv ? window.pair() : window.group();
    payload_ = {call_.request.dtype, plan::bounds_of(plan, call_.request.count, size_of(call_.request.dtype))};
    ACCORD_ASSIGN_OR_RETURN(const exec::Rounds rounds,
                            exec::rounds_of(plan, exec::places_of(layout), call_.slot_bytes, payload_));
    all_.ranks = plan.size;
    all_.slice = rounds.slice;
    all_.rounds = rounds.count;
    all_.calls = call_.times;
    all_.depth = rounds.depth;
    all_.waits_for_rounds = plan.pacing == plan::Pacing::kByExecutor;
    return {};
  }

  void add(const plan::Plan& plan, Rank rank) {
    Program& program = all_.programs.emplace_back(program_of(plan, rank));
    for (Lane& lane : program)
      for (Op& op : lane)
        if (op.is_remote && op.kind != OpKind::kWait) op.channel = channel_between(rank, op.peer);
  }

  /// Returns true if the rank does as the one that stands for it.
  bool is_same(const plan::Plan& plan, Rank rank) {
    events_.freeze();
    const Program& expected = all_.programs[static_cast<std::size_t>(rank % period_)];
    const Program found = program_of(plan, rank);
    const auto same = [](const Op& a, Op b) {
      b.channel = a.channel;
      return a == b;
    };
    return std::equal(expected.begin(), expected.end(), found.begin(), found.end(), [&](const Lane& a, const Lane& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
    });
  }

  /// Returns true if senders and receivers agree on signals, once the programs of all ranks have been made.
  bool agrees() const { return disagreement_ == 0; }

  Programs take() && {
    all_.events = events_.size();
    return std::move(all_);
  }

 private:
  Program program_of(const plan::Plan& plan, Rank rank) {
    const RoundShape shape{
        .slice = all_.slice,
        .rounds = all_.rounds,
        .depth = all_.depth,
        .reads = plan.buffers != plan::Buffers::kAnywhere && call_.request.phase != exec::Phase::kRegistered};
    const std::size_t element_bytes = size_of(payload_.dtype);
    const StepCosts costs(plan, rank, payload_.bounds, shape, element_bytes,
                          element_bytes * exec::partial_width(payload_.dtype), machine_.host, topology_);
    Preparing preparing(rank, period_, payload_, costs, machine_, topology_, events_);
    Program program;
    for (const plan::Lane& lane : plan.programs[static_cast<std::size_t>(rank)].lanes) {
      Lane& ops = program.emplace_back();
      preparing.begin_lane();
      for (const plan::Step& step : lane.steps) preparing.add(step, ops);
    }
    if (program.empty()) program.emplace_back();  // a rank that does nothing completes rounds too
    disagreement_ += preparing.disagreement();
    return program;
  }

  std::uint32_t channel_between(Rank from, Rank to) {
    const std::uint64_t key = (static_cast<std::uint64_t>(from) << 32) | static_cast<std::uint32_t>(to);
    const auto [known, is_new] = channels_.try_emplace(key, static_cast<std::uint32_t>(all_.channels.size()));
    if (is_new) all_.channels.push_back({from, to});
    return known->second;
  }

  const Call& call_;
  const Machine& machine_;
  const topology::Topology& topology_;
  int period_;
  Numbers events_;
  exec::Payload payload_;
  std::unordered_map<std::uint64_t, std::uint32_t> channels_;
  std::uint64_t disagreement_ = 0;
  Programs all_;
};

// Ranks from `first` on.
struct Block {
  Rank first = 0;
  int count = 0;
};

// The ranks that stand for others, and those to compare with them: all, or three blocks of as many if they are very
// many.
std::vector<Block> blocks_to_make(int ranks, int period) {
  constexpr int kMostRanksCompared = 4096;
  if (ranks <= std::max(kMostRanksCompared, 4 * period)) return {{0, ranks}};
  const int middle = ranks / period / 3 * period;
  return {{0, 2 * period}, {middle, period}, {ranks - period, period}};
}

// Calls `use(plan, rank)` for the ranks of all blocks until it returns false. Plans are made for several ranks at a
// time, so that they take little memory.
template <typename Use>
Status for_each_rank(const std::vector<Block>& blocks, const plan::AlgorithmEntry& algorithm, const Call& call,
                     const topology::Topology& topology, Use use) {
  constexpr std::size_t kStepsAtOnce = 1 << 19;
  constexpr int kMostRanksAtOnce = 1 << 12;
  int count = 1;
  for (auto [first, left] : blocks)
    while (left > 0) {
      plan::Request request{.collective = call.request.collective, .root = call.request.root, .only_rank = first};
      request.rank_count = std::min(count, left);
      left -= request.rank_count;
      ACCORD_ASSIGN_OR_RETURN(const plan::Plan plan, plan::make_plan(algorithm, topology, request));
      std::size_t steps = 1;
      for (const Rank end = first + request.rank_count; first < end; ++first) {
        for (const plan::Lane& lane : plan.programs[static_cast<std::size_t>(first)].lanes) steps += lane.steps.size();
        if (!use(plan, first)) return {};
      }
      count = static_cast<int>(std::clamp<std::size_t>(
          kStepsAtOnce * static_cast<std::size_t>(request.rank_count) / steps, 1, kMostRanksAtOnce));
    }
  return {};
}

// Returns no programs if ranks differ from those that stand for them.
Result<Programs> programs_with_period(const plan::AlgorithmEntry& algorithm, const Call& call, const Machine& machine,
                                      const topology::Topology& topology, int period) {
  Preparation preparation(call, machine, topology, period);
  Status begun;
  bool is_same = true;
  const std::vector<Block> blocks = blocks_to_make(topology.size(), period);
  ACCORD_RETURN_IF_ERROR(for_each_rank(blocks, algorithm, call, topology, [&](const plan::Plan& plan, Rank rank) {
    if (rank == 0) begun = preparation.begin(plan);
    if (!begun.ok()) return false;
    if (rank < period) {
      preparation.add(plan, rank);
    } else {
      is_same = preparation.is_same(plan, rank);
    }
    return is_same;
  }));
  ACCORD_RETURN_IF_ERROR(begun);
  const bool agrees = blocks.size() > 1 || preparation.agrees();
  return is_same && agrees ? std::move(preparation).take() : Programs();
}

}  // namespace

Result<Programs> programs_of(const plan::Plan& plan, const Call& call, const Machine& machine,
                             const topology::Topology& topology) {
  Preparation preparation(call, machine, topology, topology.size());
  ACCORD_RETURN_IF_ERROR(preparation.begin(plan));
  for (Rank rank = 0; rank < plan.size; ++rank) preparation.add(plan, rank);
  return std::move(preparation).take();
}

Result<Programs> programs_of(const plan::AlgorithmEntry& algorithm, const Call& call, const Machine& machine,
                             const topology::Topology& topology, bool may_fold) {
  if (algorithm.buffers != plan::Buffers::kAnywhere && !algorithm.only_reads)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} needs the buffers of all ranks to be in windows", algorithm.name));
  int period = topology.size();
  if (may_fold && topology.host_count() > 1 && !machine.network.hosts_share_cores)
    period = machine.host.ranks * symmetric_hosts(machine.network, topology.host_count());
  if (period < topology.size()) {
    ACCORD_ASSIGN_OR_RETURN(Programs folded, programs_with_period(algorithm, call, machine, topology, period));
    if (!folded.programs.empty()) return folded;
  }
  return programs_with_period(algorithm, call, machine, topology, topology.size());
}

}  // namespace accord::sim
