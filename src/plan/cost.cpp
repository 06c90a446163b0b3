// One walk through the programs. The length of a step's data is that of the caller's chunk it came from, which is
// tracked with the contents of scratch and packets. A hop count is tracked with each signal and packet and grows by
// one there.

#include "plan/cost.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "plan/bounds.hpp"
#include "plan/walk.hpp"

namespace accord::plan {
namespace {

class Counting : public StepVisitor {
 public:
  Counting(const Plan& plan, std::size_t count, std::size_t element_bytes, std::size_t partial_bytes)
      : bounds_(bounds_of(plan, count, element_bytes)),
        element_bytes_(element_bytes),
        partial_bytes_(std::max(element_bytes, partial_bytes)),
        size_(plan.size),
        ranks_(static_cast<std::size_t>(plan.size)),
        hops_(static_cast<std::size_t>(first_lanes(plan).back()), 0) {}

  void arrive(int lane, int, const StepPlace& place, const Step& barrier) override {
    int& known = barriers_[{place.rank, barrier.id}];
    known = std::max(known, hops_of(lane));
  }

  Status step(int lane, int, const StepPlace& place, const Step& step) override {
    Cost& cost = ranks_[static_cast<std::size_t>(place.rank)];
    ++cost.steps;
    switch (step.kind) {
      case StepKind::kSignal:
        signals_[{place.rank, step.peer, step.id}] = hops_of(lane) + (step.peer != place.rank);
        break;
      case StepKind::kWait: learn(lane, signals_[{step.peer, place.rank, step.id}]); break;
      case StepKind::kLaneBarrier: learn(lane, barriers_[{place.rank, step.id}]); break;
      case StepKind::kCopy:
      case StepKind::kReduce:
      case StepKind::kPutPackets: move(lane, place.rank, step, cost); break;
    }
    cost.hops = std::max(cost.hops, hops_of(lane));
    return {};
  }

  Cost most() const {
    Cost most;
    for (const Cost& cost : ranks_) {
      most.steps = std::max(most.steps, cost.steps);
      most.hops = std::max(most.hops, cost.hops);
      most.bytes_exchanged = std::max(most.bytes_exchanged, cost.bytes_exchanged);
      most.bytes_touched = std::max(most.bytes_touched, cost.bytes_touched);
      most.bytes_added = std::max(most.bytes_added, cost.bytes_added);
      most.bytes_in_packets = std::max(most.bytes_in_packets, cost.bytes_in_packets);
    }
    return most;
  }

 private:
  using ChunkKey = std::tuple<Rank, Space, int>;
  static ChunkKey key(const Chunk& chunk) { return {chunk.rank, chunk.space, chunk.index}; }
  int& hops_of(int lane) { return hops_[static_cast<std::size_t>(lane)]; }
  void learn(int lane, int hops) { hops_of(lane) = std::max(hops_of(lane), hops); }

  std::size_t elements_of(const Chunk& chunk) {
    const auto index = static_cast<std::size_t>(chunk.index);
    if (chunk.space == Space::kInput) return bounds_.input[index].count;
    if (chunk.space == Space::kOutput) return bounds_.output[index].count;
    return contents_[key(chunk)];
  }
  // Data that a step of `rank` reads from every rank are as long as its own.
  Chunk read_by(Rank rank, Chunk chunk) const {
    if (chunk.rank == kEveryRank) chunk.rank = rank;
    return chunk;
  }

  void move(int lane, Rank rank, const Step& step, Cost& cost) {
    const std::size_t elements = elements_of(read_by(rank, step.sources[0]));
    const auto touch = [&](const Chunk& chunk) {
      const std::size_t bytes = elements * (chunk.space == Space::kPartials ? partial_bytes_ : element_bytes_);
      if (chunk.rank != rank) cost.bytes_exchanged += bytes;
      if (chunk.space == Space::kPackets) cost.bytes_in_packets += bytes;
      cost.bytes_touched += bytes;
    };
    for (const Chunk& source : step.sources) {
      if (source.space == Space::kPackets) learn(lane, puts_[key(source)]);
      touch(source);
    }
    for (const Chunk& destination : step.destinations) {
      touch(destination);
      for (const Chunk& single : single_chunks(destination, size_)) contents_[key(single)] = elements;
      if (step.kind == StepKind::kPutPackets) puts_[key(destination)] = hops_of(lane) + 1;
    }
    cost.bytes_added += (step.sources.size() - 1) * elements * element_bytes_;
  }

  Bounds bounds_;
  std::size_t element_bytes_;
  std::size_t partial_bytes_;
  int size_;
  std::vector<Cost> ranks_;
  std::vector<int> hops_;  // by lane
  std::map<std::tuple<Rank, Rank, int>, int> signals_;
  std::map<std::tuple<Rank, int>, int> barriers_;
  std::map<ChunkKey, int> puts_;
  std::map<ChunkKey, std::size_t> contents_;  // elements
};

}  // namespace

Cost cost_of(const Plan& plan, std::size_t count, std::size_t element_bytes, std::size_t partial_bytes) {
  Counting counting(plan, count, element_bytes, partial_bytes);
  const auto stuck = walk(plan, 1, RoundGate::kOpen, counting);
  return stuck.ok() ? counting.most() : Cost{};
}

double predicted_seconds(const Cost& cost, std::uint64_t rounds, const MachineTimes& times) {
  const double round = cost.hops * times.seconds_per_hop + cost.steps * times.seconds_per_step;
  return static_cast<double>(rounds) * round +
         static_cast<double>(cost.bytes_touched) * times.seconds_per_byte_touched +
         static_cast<double>(cost.bytes_exchanged) * times.seconds_per_byte_exchanged +
         static_cast<double>(cost.bytes_in_packets) * times.seconds_per_byte_in_packets;
}

}  // namespace accord::plan
