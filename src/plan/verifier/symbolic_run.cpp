// One run in any order represents all of them. Waits and packets order the same events in every run, so
// happens-before is the same in every run too. If it orders any two conflicting accesses, every run reads the same
// terms, and if this run ends, every run ends. (Lamport 1978; data-race freedom as in FastTrack, Flanagan and Freund
// 2009.)
//
// Edges: program order of a lane; signal to wait; put to the read of the packets; arrival of all lanes at a barrier
// to their departure; the end of a rank's round to the start of its next; and, if the gate is enforced, the end of
// all ranks' round k - kRoundDepth to each start of round k. kRoundDepth + 1 rounds cover each reuse of scratch once.

#include "plan/verifier/symbolic_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "plan/verifier/deadlock.hpp"
#include "plan/verifier/expected.hpp"

namespace accord::plan {
namespace {

constexpr int kRounds = static_cast<int>(kRoundDepth) + 1;

std::vector<Rank> ranks_of_lanes(const Plan& plan) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < plan.size; ++rank) {
    ranks.insert(ranks.end(), plan.programs[static_cast<std::size_t>(rank)].lanes.size(), rank);
  }
  return ranks;
}

// Drops the clocks of a round that all ranks have completed.
template <typename Map>
void forget_round(Map& moments, int round) {
  std::erase_if(moments, [round](const auto& entry) { return std::get<0>(entry.first) <= round; });
}

}  // namespace

SymbolicRun::SymbolicRun(const Plan& plan, Aliasing aliasing, RoundGate gate, PacketOrder packet_order)
    : plan_(plan),
      gate_(gate),
      packet_order_(packet_order),
      memory_(plan, aliasing, kRounds, expressions_),
      ranks_(ranks_of_lanes(plan)),
      clocks_(ranks_.size()),
      rank_ends_(static_cast<std::size_t>(kRounds * plan.size), Clock(ranks_.size(), 0)),
      all_ends_(kRounds, Clock(ranks_.size(), 0)),
      lanes_left_(kRounds, ranks_.size()),
      starts_(ranks_.size()) {}

Status SymbolicRun::check() {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<StepPlace> stuck, walk(plan_, kRounds, gate_, *this));
  if (!stuck.empty()) return deadlock_error(plan_, stuck);
  ACCORD_RETURN_IF_ERROR(check_outputs());
  ACCORD_RETURN_IF_ERROR(check_visits());
  return check_all_arrived();
}

void SymbolicRun::begin_round(int lane, int round) {
  if (round >= 1) clocks_.learn(lane, rank_ends_[end_of(round - 1, rank_of(lane))]);
  const int freed = round - static_cast<int>(kRoundDepth);
  if (freed >= 0 && gate_ == RoundGate::kUntilCompleted)
    clocks_.learn(lane, all_ends_[static_cast<std::size_t>(freed)]);
  const Epoch start = clocks_.tick(lane);
  if (round == 0) starts_[static_cast<std::size_t>(lane)] = start;
}

void SymbolicRun::end_round(int lane, int round) {
  const Moment end = clocks_.moment(lane);
  const auto index = static_cast<std::size_t>(round);
  Clocks::join(rank_ends_[end_of(round, rank_of(lane))], *end);
  Clocks::join(all_ends_[index], *end);
  if (--lanes_left_[index] > 0) return;
  forget_round(signals_, round);
  forget_round(packets_, round);
  forget_round(barriers_, round);
}

void SymbolicRun::arrive(int lane, int round, const StepPlace& place, const Step& barrier) {
  Clock& known = barriers_.try_emplace({round, place.rank, barrier.id}, ranks_.size(), 0U).first->second;
  Clocks::join(known, *clocks_.moment(lane));
}

Status SymbolicRun::step(int lane, int round, const StepPlace& place, const Step& step) {
  switch (step.kind) {
    case StepKind::kSignal: signals_[{round, place.rank, step.peer, step.id}] = clocks_.moment(lane); return {};
    case StepKind::kWait: clocks_.learn(lane, *signals_.at({round, step.peer, place.rank, step.id})); return {};
    case StepKind::kLaneBarrier: clocks_.learn(lane, barriers_.at({round, place.rank, step.id})); return {};
    case StepKind::kCopy:
    case StepKind::kReduce:
    case StepKind::kPutPackets:
      for (const Chunk& source : step.sources) {
        if (source.space == Space::kPackets && !is_checked(source))
          clocks_.learn(lane, *packets_.at({round, source.rank, 0, source.index}));
      }
      ACCORD_RETURN_IF_ERROR(move({clocks_.tick(lane), place, round}, step));
      if (step.kind == StepKind::kPutPackets) {
        packets_[{round, step.peer, 0, step.destinations[0].index}] = clocks_.moment(lane);
      }
      return {};
  }
  return {};
}

Status SymbolicRun::move(const Access& access, const Step& step) {
  if (plan_.buffers != Buffers::kAnywhere) note_visits(access, step);
  ACCORD_ASSIGN_OR_RETURN(const Value value, read_sources(access, step));
  return write_destinations(access, step, value);
}

Result<SymbolicRun::Value> SymbolicRun::read_sources(const Access& access, const Step& step) {
  std::vector<Term> terms;
  const bool by_switch = step.sources[0].rank == kEveryRank;
  const std::vector<Chunk> sources = by_switch ? single_chunks(step.sources[0], plan_.size) : step.sources;
  for (const Chunk& source : sources) {
    Cell& cell = memory_.cell(source, access.round);
    const auto other = Memory::read(cell, access, clocks_);
    if (other && !is_checked(source)) return race_error(access, source, *other);
    if (cell.written_round != access.round) return unwritten_error(access, source);
    const Chunk& first = sources[0];
    if (cell.length_class != memory_.cell(first, access.round).length_class) {
      return error(access.place, fmt::format("{} and {} have different lengths", to_string(first), to_string(source)));
    }
    if (step.kind == StepKind::kReduce && cell.rounded) {
      return error(access.place,
                   fmt::format("adds to {}, a sum that was rounded when it was written; sums that are added to "
                               "again must be in partials",
                               to_string(source)));
    }
    terms.push_back(cell.value);
  }
  const Cell& first = memory_.cell(sources[0], access.round);
  const Term sum = by_switch && terms.size() > 1 ? expressions_.unordered(terms) : expressions_.tree(terms);
  return Value{sum, first.length_class, first.rounded};
}

Status SymbolicRun::write_destinations(const Access& access, const Step& step, const Value& value) {
  std::vector<Chunk> destinations;
  for (const Chunk& destination : step.destinations)
    for (const Chunk& single : single_chunks(destination, plan_.size)) destinations.push_back(single);
  for (const Chunk& destination : destinations) {
    if (destination.space == Space::kOutput && destination.index % length_classes(plan_) != value.length_class) {
      return error(access.place,
                   fmt::format("{} and {} have different lengths", to_string(step.sources[0]), to_string(destination)));
    }
    const bool onto_itself =
        step.kind == StepKind::kCopy && memory_.same_cell(step.sources[0], destination, access.round);
    if (onto_itself) continue;  // the executor skips it
    Cell& cell = memory_.cell(destination, access.round);
    const auto other = Memory::write(cell, access, clocks_);
    if (other && !is_checked(destination)) return race_error(access, destination, *other);
    cell.value = value.term;
    cell.length_class = value.length_class;
    cell.written_round = access.round;
    cell.rounded = value.rounded || (step.kind == StepKind::kReduce && destination.space != Space::kPartials);
  }
  return {};
}

void SymbolicRun::note_visits(const Access& access, const Step& step) {
  for (const auto* chunks : {&step.sources, &step.destinations})
    for (const Chunk& chunk : *chunks)
      if (chunk.rank != access.place.rank && (chunk.space == Space::kInput || chunk.space == Space::kOutput))
        visits_.push_back({access, chunk});
}

// After a rank has ended, its caller may change its buffers, so every access to them must come first. The wait for a
// signal of the rank, which check_pairing() requires, ensures that no access comes too early.
Status SymbolicRun::check_visits() const {
  for (const Visit& visit : visits_) {
    const Epoch& when = visit.access.epoch;
    const Clock& end = rank_ends_[end_of(visit.access.round, visit.chunk.rank)];
    if (end[static_cast<std::size_t>(when.lane)] >= when.time) continue;
    return error(visit.access.place,
                 fmt::format("may still access {} after rank {} has returned: no signal after it makes "
                             "rank {} wait",
                             to_string(visit.chunk), visit.chunk.rank, visit.chunk.rank));
  }
  return {};
}

Status SymbolicRun::check_outputs() {
  const CollectiveTraits& traits = traits_of(plan_.collective);
  const bool differs_by_rank = traits.input.divided || traits.output.holders != Holders::kAll;
  for (int round = 0; round < kRounds; ++round) {
    for (int c = 0; c < plan_.output_chunks; ++c) {
      std::optional<Term> wanted;
      for (Rank rank = 0; rank < plan_.size; ++rank) {
        if (rank == 0 || differs_by_rank) wanted = expected_output(plan_, rank, c, round, expressions_);
        const Chunk chunk{rank, Space::kOutput, c};
        const Term got = memory_.cell(chunk, round).value;
        const bool is_its_own = plan_.order == Order::kFixed || plan_.order == Order::kSwitch;
        const bool decides_order = is_its_own && (rank == 0 || differs_by_rank);
        if (wanted && decides_order && same_contributions(plan_, *wanted, got, expressions_)) wanted = got;
        if (wanted && memory_.cell(chunk, round).value != *wanted) return output_error(chunk, round, *wanted);
      }
    }
  }
  return {};
}

// After a barrier, each rank knows that all have arrived; a plan that paces itself promises the same for each round.
Status SymbolicRun::check_all_arrived() const {
  const bool is_barrier = plan_.collective == Collective::kBarrier;
  if (packet_order_ == PacketOrder::kOfPackets) return {};
  if (!is_barrier && gate_ == RoundGate::kUntilCompleted) return {};
  for (Rank rank = 0; rank < plan_.size; ++rank) {
    const Clock& end = rank_ends_[static_cast<std::size_t>(rank)];
    for (const Epoch& start : starts_) {
      if (end[static_cast<std::size_t>(start.lane)] >= start.time) continue;
      return {StatusCode::kInvalidArgument,
              fmt::format(
                  "{}, rank {}: {} although nothing that it waits for shows that rank {} has arrived", to_string(plan_),
                  rank,
                  is_barrier ? "leaves the barrier" : "the plan is paced by its waits, but the rank completes a round",
                  rank_of(start.lane))};
    }
  }
  return {};
}

Status SymbolicRun::error(const StepPlace& place, std::string_view problem) const {
  const Program& program = plan_.programs[static_cast<std::size_t>(place.rank)];
  const Lane& lane = program.lanes[static_cast<std::size_t>(place.lane)];
  return step_error(plan_, place, lane.steps[static_cast<std::size_t>(place.step)], problem);
}

Status SymbolicRun::race_error(const Access& access, const Chunk& chunk, const Access& other) const {
  const int distance = access.round - other.round;
  const std::string when =
      distance == 0 ? "" : fmt::format(", {} rounds {},", std::abs(distance), distance > 0 ? "earlier" : "later");
  const std::string_view events =
      packet_order_ == PacketOrder::kOfAll ? "signal, packet or barrier" : "signal or barrier";
  return error(access.place, fmt::format("races with {}{} for {}: no {} orders the two", place_text(plan_, other.place),
                                         when, to_string(chunk), events));
}

Status SymbolicRun::unwritten_error(const Access& access, const Chunk& chunk) const {
  for (std::size_t rank = 0; rank < plan_.programs.size(); ++rank) {
    const std::vector<Lane>& lanes = plan_.programs[rank].lanes;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      for (std::size_t step = 0; step < lanes[lane].steps.size(); ++step) {
        const auto& destinations = lanes[lane].steps[step].destinations;
        const bool writes = std::ranges::any_of(destinations, [&](Chunk d) {
          if (d.rank == kEveryRank) d.rank = chunk.rank;
          return memory_.same_cell(d, chunk, access.round);
        });
        if (!writes) continue;
        const StepPlace writer{static_cast<Rank>(rank), static_cast<int>(lane), static_cast<int>(step)};
        return error(access.place, fmt::format("reads {}, but nothing ensures that {}, which writes it, comes first",
                                               to_string(chunk), place_text(plan_, writer)));
      }
    }
  }
  return error(access.place, fmt::format("reads {}, which no step writes", to_string(chunk)));
}

Status SymbolicRun::output_error(const Chunk& chunk, int round, Term wanted) {
  const Cell& cell = memory_.cell(chunk, round);
  const std::string what = to_string(chunk);
  if (cell.written_round != round) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}, rank {}: no step writes {}", to_string(plan_), chunk.rank, what)};
  }
  const std::string problem = what + " " + difference_text(plan_, wanted, cell.value, expressions_);
  if (cell.writer) return error(cell.writer->place, problem);
  return {StatusCode::kInvalidArgument,
          fmt::format("{}, rank {}: no step writes {}, which still {}", to_string(plan_), chunk.rank, what,
                      difference_text(plan_, wanted, cell.value, expressions_))};
}

}  // namespace accord::plan
