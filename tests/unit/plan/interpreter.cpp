// The memory of rank r in place: the input of all_gather and gather is its part of the output, the output of
// reduce_scatter and scatter its part of the input, and all others share one buffer; where only the root has both
// buffers, only it shares them. Shared spaces keep kRoundDepth slots. A rank begins round k when every rank has ended
// round k - kRoundDepth, unless the plan says that it paces itself: then the rank never checks.

#include "unit/plan/interpreter.hpp"

#include <algorithm>
#include <unordered_set>

#include "base/rounding.hpp"

namespace accord::plan::testing {
namespace {

constexpr int kDepth = static_cast<int>(kRoundDepth);
constexpr Number kGarbage = -77;

bool is_any_of(Collective collective, std::initializer_list<Collective> collectives) {
  return std::ranges::find(collectives, collective) != collectives.end();
}

bool input_has_parts(Collective collective) {
  return is_any_of(collective, {Collective::kReduceScatter, Collective::kScatter, Collective::kAllToAll});
}

bool output_has_parts(Collective collective) {
  return is_any_of(collective, {Collective::kAllGather, Collective::kGather, Collective::kAllToAll});
}

bool has_output(const Plan& plan, Rank rank) {
  if (plan.collective == Collective::kSendRecv) return rank == 1;
  return rank == plan.root || !is_any_of(plan.collective, {Collective::kReduce, Collective::kGather});
}

bool shares_memory(const Plan& plan, const MachineRequest& request, Rank rank) {
  if (plan.collective == Collective::kBroadcast) return true;
  const bool only_root = is_any_of(plan.collective, {Collective::kReduce, Collective::kGather, Collective::kScatter});
  if (only_root && rank != plan.root) return false;
  return request.aliasing == Aliasing::kInPlace && is_in_place_possible(plan.collective);
}

Number tree(const std::vector<Number>& values, std::size_t first, std::size_t count, Combine combine) {
  if (count == 1) return values[first];
  std::size_t half = 1;
  while (half * 2 < count) half *= 2;
  return combine(tree(values, first, half, combine), tree(values, first + half, count - half, combine));
}

}  // namespace

bool is_in_place_possible(Collective collective) {
  return collective != Collective::kSendRecv && collective != Collective::kBarrier;
}

Machine::Machine(const Plan& plan, const MachineRequest& request)
    : plan_(&plan), request_(request), bounds_(bounds_of(plan, request.count, request.element_bytes)) {
  rounds_ = std::max(1, static_cast<int>((bounds_.longest + request.slice - 1) / request.slice));
  if (plan.collective == Collective::kBarrier) rounds_ = kDepth + 1;  // as if called several times
  if (plan.collective == Collective::kBarrier) request_.count = 0;
  const std::size_t parts = to_size(plan.size);
  const std::size_t in = request_.count * (input_has_parts(plan.collective) ? parts : 1);
  const std::size_t out = request_.count * (output_has_parts(plan.collective) ? parts : 1);
  for (Rank rank = 0; rank < plan.size; ++rank) {
    for (std::size_t lane = 0; lane < plan.programs[to_size(rank)].lanes.size(); ++lane) {
      lanes_.push_back({.rank = rank, .lane = static_cast<int>(lane), .registers = {}});
    }
    std::vector<Number> values(in);
    for (std::size_t i = 0; i < in; ++i) values[i] = input_value(rank, i);
    if (!shares_memory(plan, request, rank)) {
      inputs_.push_back(values);
      outputs_.emplace_back(out, kGarbage);
      continue;
    }
    inputs_.emplace_back();
    std::vector<Number> both(std::max(in, out), kGarbage);
    const std::size_t first = in < out ? to_size(rank) * request.count : 0;
    std::copy(values.begin(), values.end(), both.begin() + static_cast<std::ptrdiff_t>(first));
    outputs_.push_back(std::move(both));
  }
}

bool Machine::all_done() const {
  return std::ranges::all_of(lanes_, [&](const Lane& lane) { return lane.round == rounds_; });
}

Machine::Place Machine::place_of(const Chunk& chunk, int round, std::size_t step_elements) {
  const int slot = round % kDepth;
  const auto shared = [&](auto& space) {
    std::vector<Number>& memory = space[{chunk.rank, chunk.index, slot}];
    if (memory.size() < request_.slice) memory.resize(request_.slice, kGarbage);
    return Place{&memory, 0, step_elements};
  };
  if (chunk.space == Space::kScratch) return shared(scratch_);
  if (chunk.space == Space::kPackets) return shared(packets_);
  if (chunk.space == Space::kPartials) return shared(partials_);
  if (chunk.space == Space::kMulticast) return shared(multicast_);
  const bool is_input = chunk.space == Space::kInput;
  const Range range = (is_input ? bounds_.input : bounds_.output)[to_size(chunk.index)];
  std::size_t first = range.first + to_size(round) * request_.slice;
  if (!shares_memory(*plan_, request_, chunk.rank))
    return {&(is_input ? inputs_ : outputs_)[to_size(chunk.rank)], first, step_elements};
  const bool parts_in = input_has_parts(plan_->collective), parts_out = output_has_parts(plan_->collective);
  if (parts_in != parts_out && is_input == parts_out) first += to_size(chunk.rank) * request_.count;
  return {&outputs_[to_size(chunk.rank)], first, step_elements};
}

// Returns as many elements as the caller's chunk has in this round; between shared chunks, a whole slice.
std::size_t Machine::elements_of(const Step& step, int round) const {
  const std::size_t done = to_size(round) * request_.slice;
  for (const auto* chunks : {&step.destinations, &step.sources}) {
    for (const Chunk& chunk : *chunks) {
      if (chunk.space != Space::kInput && chunk.space != Space::kOutput) continue;
      const std::size_t count =
          (chunk.space == Space::kInput ? bounds_.input : bounds_.output)[to_size(chunk.index)].count;
      return count <= done ? 0 : std::min(request_.slice, count - done);
    }
  }
  return request_.slice;
}

std::vector<Number> Machine::combined(const std::vector<std::vector<Number>>& sources) const {
  std::vector<Number> result(sources[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::vector<Number> values;
    for (const auto& source : sources) values.push_back(source[i]);
    result[i] = tree(values, 0, values.size(), request_.combine);
  }
  return result;
}

bool Machine::may_begin(const Lane& lane) const {
  return std::ranges::all_of(lanes_, [&](const Lane& other) {
    if (other.rank == lane.rank && other.round < lane.round) return false;
    return plan_->pacing == Pacing::kByPlan || other.round > lane.round - kDepth;
  });
}

bool Machine::may_read(const Lane& lane, const Chunk& chunk) const {
  if (chunk.space != Space::kPackets) return true;
  const auto put = packet_rounds_.find({chunk.rank, chunk.index, lane.round % kDepth});
  return put != packet_rounds_.end() && put->second == lane.round + 1;
}

// Ranks may access a caller's buffers only from the beginning of its call to its end.
bool Machine::is_visit_in_time(const Lane& lane, const Chunk& chunk) const {
  if (chunk.rank == lane.rank || (chunk.space != Space::kInput && chunk.space != Space::kOutput)) return true;
  const auto begun = [&](const Lane& other) {
    return other.round > lane.round || (other.round == lane.round && (other.step > 0 || other.action > 0));
  };
  const auto ended = [&](const Lane& other) { return other.round > lane.round; };
  bool any_begun = false, all_ended = true;
  for (const Lane& other : lanes_) {
    if (other.rank != chunk.rank) continue;
    any_begun |= begun(other);
    all_ended &= ended(other);
  }
  return any_begun && !all_ended;
}

// Returns the chunks, with a chunk of every rank as one chunk for each rank.
std::vector<Chunk> Machine::each_of(const std::vector<Chunk>& chunks) const {
  std::vector<Chunk> each;
  for (const Chunk& chunk : chunks) {
    const bool is_of_every_rank = chunk.rank == kEveryRank;
    for (Rank rank = is_of_every_rank ? 0 : chunk.rank; rank < (is_of_every_rank ? plan_->size : chunk.rank + 1);
         ++rank)
      each.push_back({rank, chunk.space, chunk.index});
  }
  return each;
}

bool Machine::advance_movement(Lane& lane, const Step& step) {
  const std::vector<Chunk> sources = each_of(step.sources), destinations = each_of(step.destinations);
  const std::size_t elements = elements_of(step, lane.round);
  const auto action = to_size(lane.action);
  if (action < sources.size()) {
    const Chunk& source = sources[action];
    if (!may_read(lane, source)) return false;
    strayed_ |= !is_visit_in_time(lane, source);
    const Place place = place_of(source, lane.round, elements);
    const auto first = place.memory->begin() + static_cast<std::ptrdiff_t>(elements > 0 ? place.first : 0);
    lane.registers.emplace_back(first, first + static_cast<std::ptrdiff_t>(elements));
    ++lane.action;
    return true;
  }
  const std::vector<Number> value = combined(lane.registers);
  const Chunk& destination = destinations[action - sources.size()];
  strayed_ |= !is_visit_in_time(lane, destination);
  const Place place = place_of(destination, lane.round, elements);
  const Place from = place_of(sources[0], lane.round, elements);
  const bool skipped = step.kind == StepKind::kCopy && from.memory == place.memory && from.first == place.first;
  for (std::size_t i = 0; i < elements && !skipped; ++i) place.memory->at(place.first + i) = value[i];
  if (step.kind == StepKind::kPutPackets) {
    packet_rounds_[{destination.rank, destination.index, lane.round % kDepth}] = lane.round + 1;
  }
  if (to_size(++lane.action) == sources.size() + destinations.size()) next_step(lane);
  return true;
}

bool Machine::all_arrived(int round) const {
  return plan_->size == 1 || std::ranges::all_of(lanes_, [&](const Lane& lane) {
           return lane.round > round || (lane.round == round && (lane.step > 0 || lane.action > 0));
         });
}

void Machine::next_step(Lane& lane) {
  lane.action = 0;
  lane.registers.clear();
  ++lane.step;
}

bool Machine::advance(int index) {
  Lane& lane = lanes_[to_size(index)];
  if (lane.round == rounds_) return false;
  const std::vector<Step>& steps = plan_->programs[to_size(lane.rank)].lanes[to_size(lane.lane)].steps;
  if (lane.step == 0 && lane.action == 0 && !may_begin(lane)) return false;
  if (to_size(lane.step) == steps.size()) {
    if (plan_->collective == Collective::kBarrier && !all_arrived(lane.round)) left_early_ = true;
    ++lane.round;
    lane.step = 0;
    return true;
  }
  const Step& step = steps[to_size(lane.step)];
  const int slot = lane.round % kDepth;
  switch (step.kind) {
    case StepKind::kSignal: signals_[{lane.rank, step.peer, step.id, slot}] = lane.round + 1; break;
    case StepKind::kWait:
      if (!signals_.contains({step.peer, lane.rank, step.id, slot})) return false;
      if (signals_.at({step.peer, lane.rank, step.id, slot}) != lane.round + 1) return false;
      break;
    case StepKind::kLaneBarrier: {
      int& arrived = arrivals_[{lane.rank, step.id, lane.round}];
      if (lane.action == 0) {
        ++arrived;
        lane.action = 1;
        return true;
      }
      if (to_size(arrived) < plan_->programs[to_size(lane.rank)].lanes.size()) return false;
      break;
    }
    case StepKind::kCopy:
    case StepKind::kReduce:
    case StepKind::kPutPackets: return advance_movement(lane, step);
  }
  next_step(lane);
  return true;
}

Number Machine::expected(Rank rank, std::size_t i) const {
  const std::size_t count = request_.count;
  switch (plan_->collective) {
    case Collective::kBarrier: return 0;
    case Collective::kBroadcast: return input_value(plan_->root, i);
    case Collective::kSendRecv: return input_value(0, i);
    case Collective::kScatter: return input_value(plan_->root, to_size(rank) * count + i);
    case Collective::kGather:
    case Collective::kAllGather: return input_value(static_cast<Rank>(i / count), i % count);
    case Collective::kAllToAll: return input_value(static_cast<Rank>(i / count), to_size(rank) * count + i % count);
    case Collective::kReduceScatter: i += to_size(rank) * count; break;
    case Collective::kReduce:
    case Collective::kAllReduce: break;
  }
  std::vector<Number> values;
  if (plan_->order == Order::kFixed) {  // rings: from the rank after the chunk's owner round to the owner
    const auto owner = std::ranges::find_if(bounds_.input, [&](const Range& r) { return i < r.first + r.count; });
    Number sum = 0;
    for (int step = 1; step <= plan_->size; ++step) {
      const auto from = static_cast<Rank>((owner - bounds_.input.begin() + step) % plan_->size);
      sum = step == 1 ? input_value(from, i) : request_.combine(sum, input_value(from, i));
    }
    return sum;
  }
  for (Rank r = 0; r < plan_->size; ++r) values.push_back(input_value(r, i));
  return tree(values, 0, values.size(), request_.combine);
}

bool Machine::outputs_right() const {
  if (left_early_ || strayed_) return false;
  const bool is_part = input_has_parts(plan_->collective) && !output_has_parts(plan_->collective);
  for (Rank rank = 0; rank < plan_->size; ++rank) {
    if (!has_output(*plan_, rank)) continue;
    const bool scattered = is_part && shares_memory(*plan_, request_, rank);
    const std::vector<Number>& output = outputs_[to_size(rank)];
    const std::size_t count = scattered ? request_.count : output.size();
    const std::size_t first = scattered ? to_size(rank) * request_.count : 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (output[first + i] != expected(rank, i)) return false;
    }
  }
  return true;
}

std::vector<Number> Machine::state() const {
  std::vector<Number> state;
  const auto add_all = [&](const std::vector<Number>& values) {
    state.insert(state.end(), values.begin(), values.end());
  };
  const auto add_key = [&](const auto& key) {
    std::apply([&](const auto&... parts) { (state.push_back(parts), ...); }, key);
  };
  const auto add_map = [&](const auto& map) {
    for (const auto& [key, values] : map) add_key(key), add_all(values);
  };
  const auto add_counts = [&](const auto& map) {
    for (const auto& [key, value] : map) add_key(key), state.push_back(value);
  };
  state.push_back(left_early_);
  state.push_back(strayed_);
  for (const Lane& lane : lanes_) {
    add_all({lane.round, lane.step, lane.action, static_cast<Number>(lane.registers.size())});
    for (const auto& values : lane.registers) add_all(values);
  }
  for (const auto& output : outputs_) add_all(output);
  add_map(scratch_);
  add_map(packets_);
  add_map(partials_);
  add_map(multicast_);
  add_counts(packet_rounds_);
  add_counts(signals_);
  add_counts(arrivals_);
  return state;
}

std::optional<std::string> run_randomly(const Plan& plan, const MachineRequest& request, std::mt19937& random) {
  Machine machine(plan, request);
  std::vector<int> lanes(to_size(machine.lanes()));
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<int>(i);
  while (!machine.all_done()) {
    std::ranges::shuffle(lanes, random);
    bool moved = false;
    for (const int lane : lanes) {
      const auto actions = 1 + random() % 9;  // some lanes run ahead
      for (std::size_t i = 0; i < actions && machine.advance(lane); ++i) moved = true;
    }
    if (!moved) return "deadlock";
  }
  if (!machine.outputs_right()) return "wrong output";
  return std::nullopt;
}

std::optional<std::string> run_every_way(const Plan& plan, const MachineRequest& request, std::size_t* states) {
  std::unordered_set<std::uint64_t> seen;
  std::vector<Machine> open = {Machine(plan, request)};
  const auto is_new = [&](const Machine& machine) {
    std::uint64_t hash = 0;
    for (const Number number : machine.state())
      hash = static_cast<std::uint64_t>(mix(static_cast<Number>(hash), number));
    return seen.insert(hash).second;
  };
  while (!open.empty()) {
    const Machine machine = std::move(open.back());
    open.pop_back();
    bool moved = false;
    for (int lane = 0; lane < machine.lanes(); ++lane) {
      Machine next = machine;
      if (!next.advance(lane)) continue;
      moved = true;
      if (is_new(next)) open.push_back(std::move(next));
    }
    if (!moved && !machine.all_done()) return "deadlock";
    if (!moved && !machine.outputs_right()) return "wrong output";
  }
  if (states != nullptr) *states = seen.size();
  return std::nullopt;
}

}  // namespace accord::plan::testing
