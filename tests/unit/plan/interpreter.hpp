#pragma once
// Runs plans on real numbers, step by step, in any order that the executor might use: the reference for plans. It is
// independent of the verifier. Each operand of a step is read or written by its own action, so that two lanes
// that touch one chunk at the same time can be seen to disturb each other.

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "plan/bounds.hpp"
#include "plan/plan.hpp"
#include "plan/verifier.hpp"

namespace accord::plan::testing {

using Number = std::int64_t;
/// Combines two numbers: a sum, or a function that reveals the order as well.
using Combine = Number (*)(Number, Number);

struct MachineRequest {
  Aliasing aliasing = Aliasing::kOutOfPlace;
  std::size_t count = 0;  ///< as for bounds_of()
  std::size_t element_bytes = 8;
  std::size_t slice = 1;  ///< elements of a chunk in a round
  Combine combine = nullptr;
};

/// The ranks' memory and the progress of their lanes. A value: copy it to try two ways.
class Machine {
 public:
  Machine(const Plan& plan, const MachineRequest& request);

  int lanes() const { return static_cast<int>(lanes_.size()); }
  bool done(int lane) const { return lanes_[static_cast<std::size_t>(lane)].round == rounds_; }
  bool all_done() const;
  /// Does one action of `lane`; returns false if it has to wait.
  bool advance(int lane);
  /// Returns whether every rank's output matches the definition of the collective; for a barrier, whether no rank left
  /// before all had arrived.
  bool outputs_right() const;
  /// Returns everything that determines the possible continuations.
  std::vector<Number> state() const;

  /// Returns the number at position `i` of the input of rank `rank`.
  static Number input_value(Rank rank, std::size_t i) {
    return (rank + 1) * 1000003LL + static_cast<Number>(i) * 7 + 1;
  }

 private:
  struct Lane {
    Rank rank = 0;
    int lane = 0;
    int round = 0;
    int step = 0;
    int action = 0;
    std::vector<std::vector<Number>> registers;
  };
  struct Place {  // the position of a chunk's slice, and its length
    std::vector<Number>* memory = nullptr;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  Place place_of(const Chunk& chunk, int round, std::size_t step_elements);
  std::size_t elements_of(const Step& step, int round) const;
  std::vector<Number> combined(const std::vector<std::vector<Number>>& sources) const;
  bool is_visit_in_time(const Lane& lane, const Chunk& chunk) const;
  bool all_arrived(int round) const;
  bool may_begin(const Lane& lane) const;
  bool may_read(const Lane& lane, const Chunk& chunk) const;
  std::vector<Chunk> each_of(const std::vector<Chunk>& chunks) const;
  bool advance_movement(Lane& lane, const Step& step);
  void next_step(Lane& lane);
  Number expected(Rank rank, std::size_t i) const;

  const Plan* plan_;
  MachineRequest request_;
  Bounds bounds_;
  int rounds_ = 1;
  bool strayed_ = false;     // a rank touched the buffers of a rank outside its call
  bool left_early_ = false;  // a rank left a barrier before all had arrived
  std::vector<Lane> lanes_;
  std::vector<std::vector<Number>> inputs_, outputs_;                    // in place: outputs_ holds both
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> scratch_;    // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> packets_;    // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> partials_;   // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> multicast_;  // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, int> packet_rounds_;              // owner, chunk, slot: last round put, from 1
  std::map<std::tuple<Rank, Rank, int, int>, int> signals_;              // from, to, id, slot: last round sent, from 1
  std::map<std::tuple<Rank, int, int>, int> arrivals_;                   // rank, barrier, round
};

/// Runs once in random order. Returns the problem, or nothing.
std::optional<std::string> run_randomly(const Plan& plan, const MachineRequest& request, std::mt19937& random);

/// Runs in all possible orders. Returns the problem in one of them, or nothing. `states` receives the number of
/// states.
std::optional<std::string> run_every_way(const Plan& plan, const MachineRequest& request,
                                         std::size_t* states = nullptr);

/// Returns whether a rank's input and output may be the same memory at all.
bool is_in_place_possible(Collective collective);

inline Number add(Number a, Number b) { return a + b; }
/// Neither commutative nor associative, and wraps: equal results mean equal trees.
inline Number mix(Number a, Number b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return static_cast<Number>((x * 0x9e3779b97f4a7c15ULL ^ (x >> 31)) + (y * 0xff51afd7ed558ccdULL ^ (y >> 29)));
}

}  // namespace accord::plan::testing
